"""A job in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.cli.safetext import one_line
from stoker.cli.words import duration
from stoker.model.job import Job

_WORDS = {
    "time_limit": duration,
    "lease": duration,
    "deadline": duration,
    "keep_failed": duration,
    "budget": "${}".format,
}
_LONGEST = 60  # characters of a value
_SHOWN_ELSEWHERE = ("name", "run", "source", "environment", "data", "outputs", "on", "secrets", "env_file")


def settings(job: Job) -> str:
    """The fields of the job that differ from what a job has by itself and have no line of their own."""
    plain = job.plain()
    usual = Job(name=job.name, run="true").plain()
    changed = {key: value for key, value in plain.items() if value != usual[key] and key not in _SHOWN_ELSEWHERE}
    return "\n".join(f"{key}: {_WORDS.get(key, _short)(value)}" for key, value in changed.items())


def variables(given: Mapping[str, str]) -> str:
    """`OMP_NUM_THREADS=1, PYTHONHASHSEED=0`"""
    shown = {name: value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…" for name, value in given.items()}
    return ", ".join(f"{name}={one_line(value)}" for name, value in shown.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_short(item)}" for key, item in value.items() if item not in (None, "none")) or "yes"
    return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)

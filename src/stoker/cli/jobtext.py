"""A job in words."""

from __future__ import annotations

from typing import Any

from stoker.cli.words import duration
from stoker.model.job import Job

_WORDS = {
    "time_limit": duration,
    "lease": duration,
    "deadline": duration,
    "keep_failed": duration,
    "budget": "${}".format,
}
_SHOWN_ELSEWHERE = ("name", "run", "source", "environment", "data", "outputs", "on", "secrets")


def settings(job: Job) -> str:
    """The fields of the job that differ from what a job has by itself and have no line of their own."""
    plain = job.plain()
    usual = Job(name=job.name, run="true").plain()
    changed = {key: value for key, value in plain.items() if value != usual[key] and key not in _SHOWN_ELSEWHERE}
    return "\n".join(f"{key}: {_WORDS.get(key, _short)(value)}" for key, value in changed.items())


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_short(item)}" for key, item in value.items() if item not in (None, "none")) or "yes"
    return ", ".join(map(_short, value)) if isinstance(value, list) else str(value)

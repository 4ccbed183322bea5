"""What differs between two runs: code, command, job, software, data and results."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.client.software.packages import PYTHON
from stoker.model.job.job import Job
from stoker.model.job.sections import is_ours
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import Run
from stoker.model.snapshot import Entry, Snapshot

LOWER_IS_BETTER = re.compile(r"loss|err|perplexity|ppl|\bmae\b|mse|\bwer\b|\bcer\b|\bfid\b|nll|bpb", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. None: that run has no value."""

    name: str
    first: str | None
    second: str | None


@dataclass(frozen=True, slots=True)
class MetricPair:
    """One metric of both runs. `best` is the minimum if lower is better, as with a loss, else the maximum."""

    name: str
    first_last: float | None
    second_last: float | None
    first_best: float | None
    second_best: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """Every tuple except `metrics` is empty if the runs agree; `metrics` has all of both."""

    first: str
    second: str
    code: tuple[Change, ...] = ()  # by path; the values are hashes, None if the file does not exist
    arguments: tuple[Change, ...] = ()  # by flag of the command; the whole command if the program differs
    job: tuple[Change, ...] = ()  # by field of the job file, without `run`, which is in `arguments`
    packages: tuple[Change, ...] = ()
    python: tuple[Change, ...] = ()  # the interpreter's `path` and `version`
    image: tuple[Change, ...] = ()  # the `digest` of what the scripts ran in
    system: tuple[Change, ...] = ()  # what the node is: kernel, CPU, driver; not an input
    data: tuple[Change, ...] = ()
    metrics: tuple[MetricPair, ...] = ()

    @property
    def same(self) -> bool:
        """No input of the runs differs; their results may."""
        software = self.packages or self.python or self.image
        return not (self.code or self.arguments or self.job or software or self.data)


def compare(first: Run, second: Run, first_code: Snapshot, second_code: Snapshot) -> Difference:
    ours, theirs = dict(first.packages), dict(second.packages)
    interpreters = [
        {"path": _interpreter(run), "version": packages.pop(PYTHON, None)}
        for run, packages in ((first, ours), (second, theirs))
    ]
    return Difference(
        first=first.name,
        second=second.name,
        code=changes(_contents(first_code), _contents(second_code)),
        arguments=_arguments(first.job.run, second.job.run),
        job=changes(_fields(first), _fields(second)),
        packages=changes(ours, theirs),
        python=changes(*interpreters),
        image=changes({"digest": first.image or None}, {"digest": second.image or None}),
        system=changes(first.system, second.system) if first.system and second.system else (),
        data=changes(_data(first), _data(second)),
        metrics=_metrics(first, second),
    )


def _interpreter(run: Run) -> str | None:
    """Its path matters only on the same computer."""
    return None if run.software else run.python


def changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[Change, ...]:
    names = sorted(first.keys() | second.keys())
    return tuple(
        Change(name, _text(first.get(name)), _text(second.get(name)))
        for name in names
        if first.get(name) != second.get(name)
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _contents(code: Snapshot) -> dict[str, str]:
    """Packages taken from the submitting Python are compared by what the node then had."""
    return {entry.path: _content(entry) for entry in code.entries if not is_ours(entry.path)}


def _content(entry: Entry) -> str:
    if entry.target:
        return f"link to {entry.target}"
    return f"{entry.sha256}{' executable' if entry.executable else ''}" or "an empty folder"


def _fields(run: Run) -> dict[str, Any]:
    """The job's fields by path, as a job file would set them. `run` is compared separately."""
    here = {f"env.{name}": value for name, value in run.here.items()}
    return here | {path: value for path, value in _flat("", run.job.plain()) if path != "run"}


def _flat(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{path}.{key}" if path else key, item)
    elif isinstance(value, list):
        yield path, ", ".join(str(item) for item in value) or None
    else:
        yield path, value


def _arguments(first: str, second: str) -> tuple[Change, ...]:
    """By flag if both are the same program with different flags; else the whole commands."""
    if first == second:
        return ()
    ours, theirs = _flags(first), _flags(second)
    if ours is None or theirs is None or ours[0] != theirs[0]:
        return (Change("run", first, second),)
    return changes(ours[1], theirs[1]) or (Change("run", first, second),)


def _flags(command: str) -> tuple[list[str], dict[str, str]] | None:
    """The words before the first flag, and the flags with their values. None: the command is too complex."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    start = next((index for index, word in enumerate(words) if word.startswith("-")), len(words))
    flags: dict[str, str] = {}
    flag = ""
    for word in words[start:]:
        if word.startswith("-") and not _is_number(word):
            flag, equals, value = word.partition("=")
            if flag in flags:
                return None
            flags[flag] = value if equals else ""
        else:
            flags[flag] = f"{flags[flag]} {word}".strip()
    return words[:start], flags


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _data(run: Run) -> dict[str, str]:
    marks = {name: f"{where} ({mark})" for name, where in run.data.items() if (mark := run.data_marks.get(name, ""))}
    inputs = {name: f"{one.label} ({one.id[:12]})" if one.id else one.url for name, one in run.inputs.items()}
    return dict(run.data) | marks | inputs


def _metrics(first: Run, second: Run) -> tuple[MetricPair, ...]:
    names = list(dict.fromkeys([*first.metrics, *second.metrics]))
    return tuple(
        MetricPair(
            name,
            *(summary.last if summary else None for summary in (ours, theirs)),
            *(_best(name, run.job, summary) for run, summary in ((first, ours), (second, theirs))),
        )
        for name in names
        for ours, theirs in [(first.metrics.get(name), second.metrics.get(name))]
    )


def _best(name: str, job: Job, summary: MetricSummary | None) -> float | None:
    """The job's own target says what is better; without one, the metric's name does."""
    if summary is None:
        return None
    target = job.stop_when
    if target and target.metric == name:
        return summary.least if target.test.startswith("<") else summary.most
    return summary.least if LOWER_IS_BETTER.search(name) else summary.most

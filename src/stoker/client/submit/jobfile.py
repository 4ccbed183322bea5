"""The job file: YAML to a Job, every problem with its line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from stoker.client.submit.yamltree import Misread, TextPosition, YamlTree, parse, scalar
from stoker.errors import BadInput, JobInvalid, Problem
from stoker.model.cause import Cause
from stoker.model.job.fields import ListOf, MapOf, Maybe, Plain, Record, kind_of, plain, shown
from stoker.model.job.job import Job, SpotOrNot

_MOST_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job and the file it came from."""

    job: Job
    path: Path
    _places: _Places = field(repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """The folder that relative paths of the job start from."""
        return self.path.absolute().parent

    def locate(self, invalid: JobInvalid) -> JobInvalid:
        """The same problems with file, line and column, in the order of the file."""
        return self._places.located(invalid.problems, invalid.hint)


def read(path: Path, sets: Sequence[str] = ()) -> JobFile:
    """The job in a file, with `--set key=value` settings applied on top.

    Raises BadInput if there is no readable file, and JobInvalid with everything that is wrong in it.
    """
    return read_text(_text(path), path, sets)


def read_text(text: str, path: Path, sets: Sequence[str] = ()) -> JobFile:
    """The same for a text that would be in that file. Raises JobInvalid."""
    try:
        tree = parse(text)
    except Misread as error:
        hint = "" if text.strip() else "write a first one with `stoker init`"
        raise JobInvalid([error.problem], file=str(path), hint=hint) from None
    laid = overlay(tree.data, sets if isinstance(tree.data, dict) else ())
    places = _Places(str(path), tree, tuple(laid.paths), tuple(laid.replaced))
    problems = [*tree.repeated, *laid.problems]
    try:
        job = Job.read(laid.data)
    except JobInvalid as invalid:
        raise places.located([*problems, *invalid.problems]) from None
    if problems:
        raise places.located(problems)
    return JobFile(job, path, places)


def changed(job: Job, sets: Sequence[str]) -> Job:
    """A job without a file, with `--set key=value` settings applied. Raises JobInvalid."""
    laid = overlay(job.plain(), sets)
    if laid.problems:
        raise JobInvalid(laid.problems)
    try:
        return Job.read(laid.data)
    except JobInvalid as invalid:
        raise JobInvalid([replace(one, field=f"--set {one.field}") for one in invalid.problems]) from None


class _Places(NamedTuple):
    """Where the parts of a job were written: in the file, or on the command line."""

    file: str
    tree: YamlTree
    set_paths: tuple[str, ...]
    replaced: tuple[str, ...]

    def located(self, problems: Sequence[Problem], hint: str = "") -> JobInvalid:
        found = sorted((self._located(one) for one in problems), key=lambda one: (not one.line, one.line, one.column))
        in_file = any(one.line for one in found)
        return JobInvalid(found, file=self.file if in_file else "", hint=hint)

    def _located(self, problem: Problem) -> Problem:
        if problem.line or problem.field.startswith("--set "):
            return problem
        setting = self._setting(problem.field)
        if setting:
            return replace(problem, field=f"--set {problem.field}")
        at = self._place(problem)
        return replace(problem, line=at.line, column=at.column)

    def _setting(self, path: str) -> str:
        """The setting that gave this path its value, the last one first."""
        for key in reversed(self.set_paths):
            if _within(path, key) or (_within(key, path) and (path in self.replaced or path not in self.tree.values)):
                return key
        return ""

    def _place(self, problem: Problem) -> TextPosition:
        """Of the value; of the key if the key is wrong; of the mapping if the key is missing."""
        path = problem.field
        key = self.tree.keys.get(path)
        if key and problem.found in ("an unknown key", shown(path.rpartition(".")[2])):
            return key
        while path and path not in self.tree.values:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.tree.values[path]


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise BadInput(f"job file `{path}` not found", hint=_instead(path), cause=Cause.JOB_FILE_MISSING) from None
    except IsADirectoryError:
        inside = path / "stoker.yaml"
        hint = f"name the file: `{inside}`" if inside.is_file() else "write one with `stoker init`"
        raise BadInput(
            f"`{path}` is a folder, expected a job file", hint=hint, cause=Cause.JOB_FILE_UNREADABLE
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(
            f"the job file `{path}` cannot be read: {reason.lower()}", cause=Cause.JOB_FILE_UNREADABLE
        ) from None
    if len(data) > _MOST_BYTES:
        raise BadInput(f"`{path}` has more than {_MOST_BYTES:,} bytes, expected a job file")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        at = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        problem = Problem("job", f"the byte 0x{data[error.start]:02x}", "text in UTF-8", "", *at)
        raise JobInvalid([problem], file=str(path)) from None


def _instead(path: Path) -> str:
    other = path.with_suffix(".yml" if path.suffix == ".yaml" else ".yaml")
    return f"did you mean `{other}`?" if other.is_file() else "write a first one with `stoker init`"


# `--set key=value`: settings from the command line, applied to a job's plain data.

_KEY = r"[^.\[\]=\s]+(?:\.[^.\[\]=\s]+|\[\d{1,6}\])*"
_STEP = r"\.?([^.\[\]]+)|\[(\d+)\]"


class Overlaid:
    """The data with every setting applied, the paths that were set, and problems."""

    def __init__(self, data: Plain) -> None:
        self.data = data
        self.paths: list[str] = []
        self.replaced: list[str] = []  # paths whose old value was replaced by a setting inside
        self.problems: list[Problem] = []


def overlay(data: Plain, sets: Sequence[str]) -> Overlaid:
    """Later settings win. The input data does not change."""
    laid = Overlaid(data)
    for setting in sets:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(_KEY, key):
            found = f"`{key}`" if equals else "no `=`"
            laid.problems.append(Problem(f"--set {setting}", found, "`key=value`, for example `nodes=2` or `env.A=b`"))
            continue
        try:
            steps = [name or int(index) for name, index in re.findall(_STEP, key)]
            laid.data = _laid(laid, Record(Job), laid.data, steps, _value(key, text), "")
            laid.paths.append(key)
        except Misread as error:
            laid.problems.append(Problem(f"--set {key}", error.problem.found, error.problem.expected))
    return laid


def _laid(laid: Overlaid, kind: Any, current: Plain, steps: Sequence[str | int], value: Plain, path: str) -> Plain:
    """A copy of `current` with the value at the end of the steps."""
    if not steps:
        return value
    if isinstance(steps[0], int):
        return _laid_in_list(laid, kind, current, steps, value, path)
    name, rest = steps[0], steps[1:]
    outer = _opened(kind, current)
    if outer is None:
        laid.replaced.append(path)
        outer = {}
    inner_kind, default = _inside(kind, name)
    where = f"{path}.{name}" if path else name
    inner = _laid(laid, inner_kind, outer.get(name, default), rest, value, where)
    return {**outer, name: inner}


def _laid_in_list(
    laid: Overlaid, kind: Any, current: Plain, steps: Sequence[str | int], value: Plain, path: str
) -> Plain:
    items = list(current) if isinstance(current, list | tuple) else [] if current is None else [current]
    index = int(steps[0])
    if index > len(items):
        count = f"`{path}` has {len(items)} items" if len(items) != 1 else f"`{path}` has 1 item"
        laid.problems.append(Problem(f"--set {path}[{index}]", f"item {index}", f"at most {len(items)}: {count}"))
        return current
    before = items[index] if index < len(items) else None
    inner = _laid(laid, getattr(kind, "item", None), before, steps[1:], value, f"{path}[{index}]")
    return [*items[:index], inner, *items[index + 1 :]]


def _opened(kind: Any, current: Plain) -> Mapping[str, Plain] | None:
    """The container that a setting inside `current` is added to. None: another value is in its place."""
    if isinstance(current, Mapping):
        return current
    if current is None or (isinstance(kind, SpotOrNot) and isinstance(current, bool)):
        return {}
    if isinstance(kind, Record) and kind.short and isinstance(current, str):
        return kind.widen(current)
    return None


def _inside(kind: Any, name: str) -> tuple[Any, Plain]:
    """The type of the value below this name, and its default."""
    if isinstance(kind, SpotOrNot):
        kind = kind.record
    if isinstance(kind, MapOf):
        return kind.item, None
    if isinstance(kind, Record):
        for one in fields(kind.of):
            if one.name == name:
                inner = kind_of(one)
                inner = inner.inner if isinstance(inner, Maybe) else inner
                # Only lists: a mapping's defaults are added when it is read.
                has_default = isinstance(inner, ListOf) and one.default is not MISSING
                return inner, plain(one.default) if has_default else None
    return None, None


def _value(key: str, text: str) -> Plain:
    """Numbers, booleans, quoted text and flow lists as in the file; a command or a variable is plain text."""
    if key == "run":
        return text
    stripped = text.strip()
    if key.startswith("env.") and not (stripped[:1] in ("'", '"') and stripped[:1] == stripped[-1:]):
        return text
    if stripped[:1] and stripped[0] in "[{\"'":
        return parse(stripped).data
    return scalar(stripped)

"""Parts of a job with rules of their own: checkpoint paths, hangs, targets, patterns of metrics, and the Python to take
along."""

from __future__ import annotations

import operator
import re
import re._constants as codes  # type: ignore[import-not-found]  # has no stubs
import re._parser as parser  # type: ignore[import-not-found]  # likewise; says what an expression may cost
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from math import isinf
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

from stoker.errors import JobInvalid, Problem
from stoker.model.job import fields
from stoker.model.job.fields import FieldKind, MapOf, Plain, Problems, Record, a, shown, wrong
from stoker.model.job.values import Choice, Duration

DEFAULT = "checkpoints"
BESIDE = ".stoker-exact"  # `exact: true` keeps what belongs to `NAME` in `.NAME.stoker-exact` beside it
_MAGIC = re.compile(r"[*?[]")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,9}")  # `.2` of `v1.2` is none


def is_glob(named: str) -> bool:
    return _MAGIC.search(named) is not None


def is_folder(named: str) -> bool:
    """Whether it is certainly a folder."""
    return not is_glob(named) and (named.endswith("/") or not _SUFFIX.fullmatch(PurePosixPath(named).suffix))


class CheckpointPaths:
    """All of those of one job. Paths are relative, with `/`."""

    def __init__(self, named: Iterable[str]) -> None:
        given = sorted({one.rstrip("/"): one for one in named}.values())
        self.folders = [one.rstrip("/") for one in given if is_folder(one)] or [DEFAULT]
        files = [one for one in given if not is_folder(one)]
        every = {
            *(one.rstrip("/") for one in given),
            *self.folders,
            *(beside for one in files if (beside := name_beside(one))),
        }
        self._parts = {one: tuple(one.split("/")) for one in sorted(every)}
        # None of them inside another: what is in both is in the outer one.
        self.roots = [one for one in self._parts if not any(self._covers(other, one) for other in every - {one})]
        self._known: dict[str, str | None] = {}

    def root(self, path: str) -> str | None:
        """The file or folder that is named and that `path` is, or is in; None if it is not a checkpoint."""
        if path not in self._known:
            names = tuple(path.split("/"))
            ends = range(1, len(names) + 1)
            self._known[path] = next(("/".join(names[:end]) for end in ends if self._names(names[:end])), None)
        return self._known[path]

    def top(self, path: str) -> str:
        """The folder that checkpoints lie in beside each other: the one that is named, or that of the named file."""
        root = self.root(path)
        return path.rpartition("/")[0] if root is None or root == path else root

    def leads(self, folder: str) -> bool:
        """Whether something that is named is this folder, or may be in it; `""` is the working directory."""
        names = tuple(folder.split("/")) if folder else ()
        return self.root(folder) is not None or any(_is_on_the_way(names, self._parts[one]) for one in self.roots)

    def _names(self, names: tuple[str, ...]) -> bool:
        return any(matches(names, self._parts[one]) for one in self.roots)

    def _covers(self, outer: str, inner: str) -> bool:
        return not is_glob(outer) and inner.startswith(f"{outer}/")


def name_beside(named: str) -> str:
    """What lies beside the files of this name; empty where only whole folders can be meant."""
    folder, _, name = named.rstrip("/").rpartition("/")
    return "" if name == "**" else f"{folder}/.{name}{BESIDE}".lstrip("/")


def matches(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the parts of a path are what the parts of a pattern say."""
    if not parts:
        return not names
    if parts[0] == "**":
        return any(matches(names[skipped:], parts[1:]) for skipped in range(len(names) + 1))
    return bool(names) and fits(names[0], parts[0]) and matches(names[1:], parts[1:])


def _is_on_the_way(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    for name, part in zip(names, parts, strict=False):
        if part == "**":
            return True
        if not fits(name, part):
            return False
    return True


def fits(name: str, part: str) -> bool:
    """As in a shell: a hidden name must be matched explicitly."""
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))


AFTER_S = 600.0
LEAST_S = 1.0


class HangAction(StrEnum):
    REPORT = "report"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class HangRule:
    """When a run hangs: no rank prints a line, reports a metric, saves a checkpoint or uses CPU time."""

    after: float = a(Duration(), "how long without progress", default=AFTER_S)
    action: HangAction = a(
        Choice(HangAction),
        "`report` says which rank is behind and shows the stacks; `restart` also ends the attempt as a failure of the "
        "script, which `retries` restarts",
        default=HangAction.REPORT,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        if self.after < LEAST_S:
            raise JobInvalid([Problem("after", f"`{self.after:g}`", f"{LEAST_S:g} second or more")])


@dataclass(eq=False, repr=False)
class HangOrOff(Record):
    """A time alone is `after`; `off`: nobody looks."""

    of: type[Any] = HangRule
    short: FieldKind | None = field(default_factory=Duration)
    widen: Callable[[Any], Mapping[str, Plain]] = lambda seconds: {"after": seconds}

    @property
    def expected(self) -> str:
        return f"`off`, {super().expected}"

    def read(self, value: Plain, path: str) -> HangRule | Literal[False]:
        if value is False or value in ("off", "false"):
            return False
        read: HangRule = super().read({} if value is None else value, path)
        return read

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": ["off", False]}, super().schema()]}


_TESTS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_METRIC = r"[^\W\d][\w.@/:-]*"  # in any alphabet, as in JSON lines
_TARGET = re.compile(rf"\s*({_METRIC})\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Target:
    metric: str
    test: str
    value: float

    def measured(self, values: Mapping[str, float | None], _step: float | None) -> float | None:
        """The value at a point; None: the point does not have it."""
        return values.get(self.metric)

    def reached_by(self, value: float) -> bool:
        return _TESTS[self.test](value, self.value)

    def words(self, value: float) -> str:
        return f"stopped early: {self.metric} {value:g} met `{self}`"

    def __str__(self) -> str:
        return f"{self.metric} {self.test} {repr(self.value).removesuffix('.0')}"


@dataclass(eq=False, repr=False)
class TargetText:
    """The kind that reads a target."""

    expected: str = "a metric, `>=`, `<=`, `>` or `<`, and a number, such as `val_acc >= 0.95`"

    def read(self, value: Plain, path: str) -> Target:
        if isinstance(value, Target):
            return value
        found = _TARGET.fullmatch(value) if isinstance(value, str) and len(value) < 200 else None
        if not found or isinf(float(found[3])):
            raise wrong(path, value, self)
        return Target(found[1], found[2], float(found[3]))

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": _TARGET.pattern}


OFF: Literal["off"] = "off"
MetricPatterns = Mapping[str, str] | Literal["off"]
METRIC_NAME = r"[^\W\d][\w.@/:-]{0,99}"
MOST_REPEATS = 3
# Each part that repeats without a limit may multiply the time for a line that does not match by the line's length.
LONGEST_BY_REPEATS = {0: 2000, 1: 2000, 2: 1000, 3: 300}
_LONGEST = 500


class Match(NamedTuple):
    value: float
    step: float | None  # None: the expression has no group `step`, or it found nothing


@dataclass(frozen=True, slots=True)
class MetricPattern:
    regex: re.Pattern[str]
    longest: int  # characters of a line that are looked at

    def find(self, line: str) -> Match | None:
        """What the line says; None where it does not match, or what matches is not a number."""
        found = self.regex.search(line[: self.longest])
        if not found:
            return None
        groups = self.regex.groupindex
        value = _number(found["value" if "value" in groups else 1])
        step = _number(found["step"]) if "step" in groups else None
        return None if value is None else Match(value, step)


def compiled(text: str) -> MetricPattern:
    """Raises ValueError with what is wrong."""
    if len(text) > _LONGEST:
        raise ValueError(f"{len(text)} characters, and at most {_LONGEST} are allowed")
    try:
        regex = re.compile(text)
        parsed = parser.parse(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if not regex.groups:
        raise ValueError("it has no group: put parentheses around the number")
    repeats = sum(1 for _ in _repeats(parsed, inside=False))
    if repeats > MOST_REPEATS:
        raise ValueError(f"{repeats} parts repeat without a limit, and at most {MOST_REPEATS} may")
    return MetricPattern(regex, LONGEST_BY_REPEATS[repeats])


@dataclass(eq=False, repr=False)
class PatternText:
    """One expression."""

    expected: str = r"a regular expression whose first group is the number, such as `train loss ([\d.]+)`"

    def read(self, value: Plain, path: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise wrong(path, value, self)
        try:
            compiled(value)
        except ValueError as error:
            raise Problems(Problem(path, f"{shown(value)}: {error}", self.expected)) from None
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "format": "regex"}


@dataclass(eq=False, repr=False)
class PatternsOrOff(MapOf):
    """Expressions by the metric's name; `off`: metrics are not looked for in plain text."""

    item: PatternText = PatternText()
    key: str = METRIC_NAME
    key_expected: str = "a metric's name"

    @property
    def expected(self) -> str:
        return f"`off`, or a mapping of {self.key_expected} to {self.item.expected}"

    def read(self, value: Plain, path: str) -> Any:
        if value is False or value in (OFF, "false"):
            return OFF
        return super().read({} if value is None else value, path)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": [OFF, False]}, super().schema()]}


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text and len(text) < 100 else None
    except ValueError:
        return None


_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)


def _repeats(parsed: Any, *, inside: bool) -> Iterator[None]:
    """One for each part that may repeat without a limit. Raises ValueError for one inside another: on a line that does
    not match, such an expression may try for years."""
    for code, argument in parsed:
        unlimited = code in _REPEATS and argument[1] == codes.MAXREPEAT
        if unlimited:
            if inside:
                raise ValueError("a part that repeats is inside one that repeats, which can take forever")
            yield
        many = unlimited or (code in _REPEATS and argument[1] > 1)
        for child in _children(argument):
            yield from _repeats(child, inside=inside or many)


def _children(argument: Any) -> Iterator[Any]:
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for one in argument:
            yield from _children(one)


FOLDER = ".stoker"  # in the snapshot; whatever a source has of that name is not sent
LIST = f"{FOLDER}/packages.txt"  # exact versions, one on each line, as pip and uv read them
LOCK = f"{FOLDER}/lock.txt"  # the requirements that the job names, resolved: exact versions with their hashes
WHEELS = "wheels"  # beside the list: packages that no index has
OWN_IMAGES = "localhost/stoker"  # the repository of images that nodes build and push nowhere


@dataclass(frozen=True, slots=True)
class Software:
    """With no packages: the script needs nothing but Python, or the job names its own list."""

    python: str  # a version, such as `3.11`, or what the job names
    packages: int = 0  # how many the list in the snapshot names
    size_bytes: int = 0  # of them, as installed where they come from
    # Where uv is for machines that lack it: a processor's name to the URL of a wheel, which ends in `#sha256=…`.
    uv: Mapping[str, str] = field(default_factory=dict)


def is_ours(path: str) -> bool:
    """A path in a snapshot that no source has, because it holds what was taken along."""
    return path == FOLDER or path.startswith(f"{FOLDER}/")

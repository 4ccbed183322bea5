"""Expressions that find a metric in what a script prints, as the job's `metrics` gives them. Pure."""

from __future__ import annotations

import re
import re._constants as codes  # type: ignore[import-not-found]  # has no stubs
import re._parser as parser  # type: ignore[import-not-found]  # likewise; says what an expression may cost
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stoker.errors import Problem
from stoker.model.job.fields import MapOf, Plain, Problems, shown, wrong

OFF: Literal["off"] = "off"
MetricPatterns = Mapping[str, str] | Literal["off"]
METRIC_NAME = r"[A-Za-z_][\w.@/:-]{0,99}"
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

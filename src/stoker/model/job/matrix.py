"""The matrix of a sweep: which values its trials get. Expanding it needs no I/O, and always gives the same trials."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from itertools import product
from typing import Any

from stoker.errors import Problem
from stoker.model.job.fields import Plain, Problems, nearest, shown
from stoker.model.job.values import Scalar, Whole

MOST_TRIALS = 100_000
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(\d{1,9}))?")
_RULES = ("zip", "exclude", "draws", "draws_seed")
_DRAWS = 10

Values = Mapping[str, str]  # of one trial, by parameter


class DrawKind(StrEnum):
    UNIFORM = "uniform"
    LOG_UNIFORM = "log_uniform"
    INTEGER = "integer"


@dataclass(frozen=True, slots=True)
class Draw:
    """Numbers that are drawn at random between two bounds. Draw number 7 is the same, however many there are."""

    kind: DrawKind
    least: float
    most: float

    def value(self, chance: random.Random) -> str:
        if self.kind is DrawKind.INTEGER:
            return str(chance.randint(int(self.least), int(self.most)))
        if self.kind is DrawKind.UNIFORM:
            return f"{chance.uniform(self.least, self.most):.6g}"
        return f"{math.exp(chance.uniform(math.log(self.least), math.log(self.most))):.6g}"

    def plain(self) -> dict[str, Plain]:
        whole = self.kind is DrawKind.INTEGER
        return {str(self.kind): [int(one) if whole else one for one in (self.least, self.most)]}


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Whole numbers with both ends, as `1..5` or `0..100..10`."""

    first: int
    last: int
    step: int = 1

    def __len__(self) -> int:
        return len(range(self.first, self.last + 1, self.step))

    def __iter__(self) -> Iterator[str]:
        return (str(one) for one in range(self.first, self.last + 1, self.step))

    def plain(self) -> str:
        return f"{self.first}..{self.last}" + (f"..{self.step}" if self.step != 1 else "")


Parameter = tuple[str, ...] | NumberRange | Draw


@dataclass(frozen=True, slots=True)
class Matrix:
    """Every combination of its parameters is a trial; drawn parameters are drawn together, `draws` times."""

    parameters: Mapping[str, Parameter]
    zip: tuple[tuple[str, ...], ...] = ()  # parameters whose values go together, one by one
    exclude: tuple[Values, ...] = ()
    draws: int = _DRAWS
    draws_seed: int = 0

    @property
    def names(self) -> list[str]:
        return list(self.parameters)

    @property
    def size(self) -> int:
        """How many combinations there are before `exclude`. Nothing is expanded for it."""
        return math.prod(len(axis) for axis in self._axes())

    def trials(self) -> Iterator[Values]:
        """In the order of the file: the last parameter changes fastest."""
        axes = list(self._axes())
        for chosen in product(*(axis.rows() for axis in axes)):
            values = {name: text for row in chosen for name, text in row}
            ordered = {name: values[name] for name in self.parameters}
            if not any(_matches(ordered, one) for one in self.exclude):
                yield ordered

    def plain(self) -> dict[str, Plain]:
        """As a job file holds it."""
        found: dict[str, Plain] = {
            name: list(one) if isinstance(one, tuple) else one.plain() for name, one in self.parameters.items()
        }
        if self.zip:
            found["zip"] = [list(group) for group in self.zip]
        if self.exclude:
            found["exclude"] = [dict(one) for one in self.exclude]
        drawn = any(isinstance(one, Draw) for one in self.parameters.values())
        if drawn or (self.draws, self.draws_seed) != (_DRAWS, 0):  # a search draws from lists, too
            found |= {"draws": self.draws, "draws_seed": self.draws_seed}
        return found

    def _axes(self) -> Iterator[_Axis]:
        together = {name: group for group in self.zip for name in group}
        drawn = {name: one for name, one in self.parameters.items() if isinstance(one, Draw)}
        done: set[str] = set()
        for name, one in self.parameters.items():
            if name in done:
                continue
            group = tuple(drawn) if name in drawn else together.get(name, (name,))
            done |= set(group)
            if isinstance(one, Draw):
                yield _Axis(group, self.draws, draws=drawn, seed=self.draws_seed)
            else:
                listed = [other for each in group if not isinstance(other := self.parameters[each], Draw)]
                yield _Axis(group, len(one), values=listed)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Parameters that change together."""

    names: tuple[str, ...]
    count: int
    values: Sequence[tuple[str, ...] | NumberRange] = ()
    draws: Mapping[str, Draw] = field(default_factory=dict)
    seed: int = 0

    def __len__(self) -> int:
        return self.count

    def rows(self) -> Iterator[tuple[tuple[str, str], ...]]:
        if not self.draws:
            for texts in zip(*self.values, strict=True):
                yield tuple(zip(self.names, texts, strict=True))
        for index in range(self.count if self.draws else 0):
            yield tuple((name, one.value(_chance(self.seed, name, index))) for name, one in self.draws.items())


def _chance(seed: int, name: str, index: int) -> random.Random:
    return random.Random(f"{seed}/{name}/{index}")  # a text as seed gives the same numbers in every Python


def _matches(values: Values, excluded: Values) -> bool:
    return all(values[name] == text or _key(values[name]) == _key(text) for name, text in excluded.items())


def _key(text: str) -> str | Decimal:
    """`1e-2` is `0.01`."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


@dataclass(eq=False, repr=False)
class MatrixKind:
    expected: str = "a mapping of names to values: a list, a range such as `1..5`, or `{log_uniform: [1e-5, 1e-1]}`"

    def read(self, value: Plain, path: str) -> Matrix:
        if isinstance(value, Matrix):
            return value
        if not isinstance(value, Mapping):
            raise Problems(Problem(path, shown(value), self.expected))
        problems: list[Problem] = []
        parameters: dict[str, Parameter] = {}
        rules: dict[str, Any] = {}
        for name, one in value.items():
            try:
                if name in _RULES:
                    rules[name] = _RULE_READERS[name](one, f"{path}.{name}")
                else:
                    parameters[name] = _parameter(name, one, f"{path}.{name}")
            except Problems as found:
                problems += found.problems
        if problems:
            raise Problems(*problems)
        if not parameters:
            raise Problems(Problem(path, "no parameter", self.expected))
        matrix = Matrix(parameters, **rules)
        if wrong := [*_rule_problems(matrix, path)]:
            raise Problems(*wrong)
        return matrix

    def schema(self) -> dict[str, Any]:
        one = {"type": ["string", "number", "boolean"]}
        draw = {"type": "object", "minProperties": 1, "maxProperties": 1}
        parameter = {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}, draw]}
        rules = {
            "zip": {"type": "array"},
            "exclude": {"type": "array"},
            "draws": Whole(1).schema(),
            "draws_seed": Whole(0).schema(),
        }
        return {"type": "object", "properties": rules, "patternProperties": {f"^(?:{_NAME})$": parameter}}


def _parameter(name: Any, value: Plain, path: str) -> Parameter:
    if not isinstance(name, str) or not re.fullmatch(_NAME, name):
        raise Problems(Problem(path, shown(name), "a name of letters, digits and `_`"))
    if isinstance(value, NumberRange | Draw):
        return value
    if isinstance(value, Mapping):
        return _draw(value, path)
    if isinstance(value, list | tuple):
        if not value:
            raise Problems(Problem(path, "an empty list", "at least one value"))
        return tuple(Scalar().read(one, f"{path}[{at}]") for at, one in enumerate(value))
    if isinstance(value, str) and (found := _RANGE.fullmatch(value.strip())):
        first, last, step = int(found[1]), int(found[2]), int(found[3] or 1)
        if last < first or not step:
            raise Problems(Problem(path, shown(value), "the smaller number first, as in `1..5` or `0..100..10`"))
        return NumberRange(first, last, step)
    return (Scalar().read(value, path),)


def _draw(value: Mapping[str, Plain], path: str) -> Parameter:
    kinds = [*DrawKind, "choice"]
    expected = "one of " + ", ".join(f"`{one}: [least, most]`" for one in DrawKind)
    if len(value) != 1:
        raise Problems(Problem(path, shown(value), expected))
    name, bounds = next(iter(value.items()))
    if name not in set(DrawKind):
        raise Problems(Problem(f"{path}.{name}", shown(name), expected, nearest(str(name), kinds)))
    numbers = [_number(one) for one in bounds] if isinstance(bounds, list | tuple) else []
    least, most = numbers if len(numbers) == 2 else (None, None)
    if least is None or most is None or least >= most or (name == DrawKind.LOG_UNIFORM and least <= 0):
        above = " above 0" if name == DrawKind.LOG_UNIFORM else ""
        raise Problems(Problem(f"{path}.{name}", shown(bounds), f"two numbers{above}, the smaller one first"))
    if name == DrawKind.INTEGER and not (least.is_integer() and most.is_integer()):
        raise Problems(Problem(f"{path}.{name}", shown(bounds), "two whole numbers, the smaller one first"))
    return Draw(DrawKind(name), least, most)


def _number(value: Plain) -> float | None:
    try:
        number = None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and math.isfinite(number) else None


def _groups(value: Plain, path: str) -> tuple[tuple[str, ...], ...]:
    """A single group needs no list around it."""
    groups = [value] if isinstance(value, list | tuple) and value and isinstance(value[0], str) else value
    fits = isinstance(groups, list | tuple) and all(isinstance(one, list | tuple) and len(one) > 1 for one in groups)
    if not fits:
        raise Problems(Problem(path, shown(value), "lists of names, as `[[model, batch]]`"))
    return tuple(tuple(str(name) for name in one) for one in groups)


def _excludes(value: Plain, path: str) -> tuple[Values, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) and one for one in value):
        raise Problems(Problem(path, shown(value), "a list of combinations, as `[{lr: 1e-2, seed: 3}]`"))
    return tuple(
        {str(name): Scalar().read(text, f"{path}[{at}].{name}") for name, text in one.items()}
        for at, one in enumerate(value)
    )


_RULE_READERS: dict[str, Any] = {
    "zip": _groups,
    "exclude": _excludes,
    "draws": lambda value, path: Whole(1).read(value, path),
    "draws_seed": lambda value, path: Whole(0).read(value, path),
}


def _name_problems(matrix: Matrix, path: str) -> Iterator[Problem]:
    known: dict[str, str] = {}
    zipped = {name for group in matrix.zip for name in group}
    for name, values in matrix.parameters.items():
        if (other := known.setdefault(name.upper(), name)) != name:
            yield Problem(f"{path}.{name}", f"`{name}` and `{other}`", "names that differ in more than upper case")
        listed = values if isinstance(values, tuple) and name not in zipped else ()
        seen: set[str | Decimal] = set()
        for at, text in enumerate(listed):
            if (key := _key(text)) in seen:
                yield Problem(
                    f"{path}.{name}[{at}]", f"`{text}` again", "different values; to repeat trials: `seed: 1..5`"
                )
            seen.add(key)


def _rule_problems(matrix: Matrix, path: str) -> Iterator[Problem]:
    yield from _name_problems(matrix, path)
    known, seen = matrix.names, set[str]()
    for at, group in enumerate(matrix.zip):
        where = f"{path}.zip[{at}]"
        for name in group:
            one = matrix.parameters.get(name)
            if one is None:
                yield Problem(where, f"`{name}`", "a parameter of the matrix", nearest(name, known))
            elif isinstance(one, Draw) or name in seen:
                yield Problem(where, f"`{name}`", "a parameter with a list, which is in one group")
        seen |= set(group)
        lengths = {name: len(one) for name in group if not isinstance(one := matrix.parameters.get(name, ()), Draw)}
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{count} of `{name}`" for name, count in lengths.items())
            yield Problem(where, found, "the same number of values for each")
    for at, excluded in enumerate(matrix.exclude):
        for name in excluded:
            if name not in known:
                expected = "a parameter of the matrix"
                yield Problem(f"{path}.exclude[{at}].{name}", f"`{name}`", expected, nearest(name, known))


def size_problems(matrix: Matrix, path: str) -> Iterator[Problem]:
    """Where each combination is a trial."""
    if matrix.size > MOST_TRIALS:
        yield Problem(path, f"{matrix.size:,} trials", f"at most {MOST_TRIALS:,}; draw some of them at random instead")
        return
    if matrix.exclude and not any(True for _ in matrix.trials()):
        yield Problem(f"{path}.exclude", f"all {matrix.size:,} trials", "combinations that leave at least one")

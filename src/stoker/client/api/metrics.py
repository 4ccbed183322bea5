"""The metrics of a run: a sequence of points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Point:
    """What one rank reported at one time."""

    attempt: int
    rank: int
    at: datetime
    step: float | None
    values: Mapping[str, float]


class Metrics(Sequence[Point]):
    """Points in the order they were reported."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._points = tuple(points)

    @overload
    def __getitem__(self, index: int) -> Point: ...
    @overload
    def __getitem__(self, index: slice) -> Metrics: ...
    def __getitem__(self, index: int | slice) -> Point | Metrics:
        return Metrics(self._points[index]) if isinstance(index, slice) else self._points[index]

    def __len__(self) -> int:
        return len(self._points)

    def __repr__(self) -> str:
        last = ", ".join(f"{name}={value:g}" for name, value in self.last.items())
        return f"Metrics({len(self)} points; last: {last})" if self else "Metrics(0 points)"

    @property
    def names(self) -> list[str]:
        """Every metric, in the order of its first value."""
        return list(self.last)

    @property
    def last(self) -> dict[str, float]:
        """The newest value of every metric."""
        return {name: value for point in self._points for name, value in point.values.items()}

    def series(self, name: str) -> list[tuple[float | None, float]]:
        """The steps and values of one metric; empty if there is none of that name.

        A step that was repeated after an eviction counts once, with the value of the later attempt.
        """
        found: list[Point] = []
        for point in (one for one in self._points if name in one.values):
            while found and found[-1].attempt < point.attempt and _not_before(found[-1].step, point.step):
                found.pop()
            found.append(point)
        return [(point.step, point.values[name]) for point in found]

    def frame(self) -> pandas.DataFrame:
        """One row per point: attempt, rank, at, step, then a column per metric. Requires pandas."""
        import pandas  # heavy, and only here

        facts = ["attempt", "rank", "at", "step"]
        rows = [{key: getattr(point, key) for key in facts} | dict(point.values) for point in self._points]
        return pandas.DataFrame(rows, columns=facts + [name for name in self.names if name not in facts])


def _not_before(earlier: float | None, later: float | None) -> bool:
    return earlier is not None and later is not None and earlier >= later

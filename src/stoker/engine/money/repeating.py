"""Which part of an attempt was done again, as the script itself shows it: its counters begin below where they had been.

Counters come from nodes: whatever does not rise, or is not a number, says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from stoker.model.run.report import Climb, Effort

_LEAST = 2  # values that a counter has to have shown to be one
_LARGEST = 1e15  # figures beyond this are no counters
_Curve = list[tuple[float, float]]  # seconds of running and values, both rising


@dataclass(frozen=True, slots=True)
class Repeated:
    """The end of an attempt's running that later attempts did again; `inf` where that is all of it."""

    seconds: float = 0.0
    again: str = ""  # where they began, as the script counts


class Repeating:
    """Goes back from the newest attempt, and remembers how low those that count began."""

    def __init__(self) -> None:
        self._began_at: dict[str, float] = {}

    def counts(self, effort: Effort) -> None:
        """Work of this attempt is part of the run."""
        for name, curve in _curves(effort, named=None).items():
            self._began_at[name] = min(self._began_at.get(name, inf), curve[0][1])

    def repeated(self, effort: Effort) -> Repeated:
        """Counters that go by a name decide before others. One that shows that the script resumed is believed."""
        for named in (True, False):
            shared = {name: curve for name, curve in _curves(effort, named=named).items() if name in self._began_at}
            shown = [self._shown(name, curve, effort) for name, curve in shared.items() if len(curve) >= _LEAST]
            if shown:
                return min(shown, key=lambda one: one.seconds)
        return Repeated()

    def _shown(self, name: str, curve: _Curve, effort: Effort) -> Repeated:
        floor = self._began_at[name]
        if floor >= curve[-1][1]:
            return Repeated()
        again = f"{name.partition(' of ')[0] if name != '[]' else 'round'} {floor:g}"
        if floor <= curve[0][1]:
            return Repeated(inf, again)
        return Repeated(max(effort.running_s - _reached(curve, floor), 0.0), again)


def _curves(effort: Effort, *, named: bool | None) -> Mapping[str, _Curve]:
    """By name; those that cannot be are left out."""
    return {
        climb.name: list(zip(climb.seconds, climb.values, strict=True))
        for climb in effort.climbs
        if (named is None or climb.named is named) and _rises(climb)
    }


def _rises(climb: Climb) -> bool:
    figures = (*climb.seconds, *climb.values)
    if len(climb.seconds) != len(climb.values) or not climb.values:
        return False
    if not all(isinstance(one, int | float) and abs(one) <= _LARGEST for one in figures) or min(climb.seconds) < 0:
        return False
    rises = all(one < other for one, other in pairwise(climb.values))
    return rises and list(climb.seconds) == sorted(climb.seconds)


def _reached(curve: _Curve, value: float) -> float:
    """When the counter came to a value that lies between its first and its last."""
    for (before_s, before), (after_s, after) in pairwise(curve):
        if before <= value <= after:
            return before_s + (after_s - before_s) * (value - before) / (after - before)
    return curve[-1][0]

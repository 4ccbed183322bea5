"""What a certification cannot decide, said before it takes its time. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.client.certify.code import CodeLine, Trait

_LEAST_S = 1.0  # a script that is over sooner ends before it can be evicted


def unseeded(code: Iterable[CodeLine]) -> str:
    """Why two undisturbed runs will probably differ; empty where nothing speaks for that."""
    first = {line.trait: line for line in reversed(list(code))}
    drawn = first.get(Trait.SHUFFLES) or first.get(Trait.DRAWS)
    if drawn is None or Trait.SEEDS in first:
        return ""
    return f"no line of the script sets a seed, and {drawn.file}:{drawn.line} draws random numbers: `{drawn.text}`"


def too_short(ran_s: float) -> bool:
    return ran_s < _LEAST_S


def expected_s(ran_s: float, took_s: float, evictions: int) -> float:
    """How long the disturbed runs take, roughly: each eviction costs a start and, without notice, half an interval."""
    start_s = max(took_s - ran_s, 0.5)
    runs = 1 + (evictions + 1) // 3
    return runs * took_s + evictions * (start_s + 0.25 * ran_s)

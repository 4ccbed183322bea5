"""What a look at a store found, line by line."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.cli.terminal import paint_data
from stoker.model.finding import Verdict
from stoker.model.store import StoreFinding

_STYLES = {Verdict.OK: "good", Verdict.WARN: "warn", Verdict.FAIL: "error", Verdict.SKIP: "faint"}


def lines(findings: Sequence[StoreFinding]) -> list[str]:
    widest = max((len(one.name) for one in findings), default=0)
    return [_line(one, widest) for one in findings]


def _line(one: StoreFinding, widest: int) -> str:
    advice = f"\n      {' ' * widest}  → {one.advice}" if one.advice else ""
    return f"{paint_data(f'{one.verdict:<4}', _STYLES[one.verdict])}  {one.name:<{widest}}  {one.found}{advice}"

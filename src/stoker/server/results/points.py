"""Metric points in the store, as nodes wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from stoker.errors import Malformed, Missing
from stoker.model import untrusted
from stoker.model.run.report import Measured, MetricSummary, joined_metrics, summed
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.server.results.lines import MOST_UNREADABLE, lines
from stoker.stores import Store

FILE_BYTES = 1 << 30
_SUMMED_BYTES = 8 << 20  # of one node; reading more takes seconds, and what nodes counted themselves is close enough


def measured(line: bytes, now: datetime) -> Measured | None:
    """None for a line that no agent writes."""
    try:
        return untrusted.load(Measured, line, now)
    except Malformed:
        return None


def points(store: Store, key: str, now: datetime) -> Iterator[Measured]:
    """Of one node, in their order."""
    unreadable = 0
    for line in lines(store, key, FILE_BYTES):
        if point := measured(line, now):
            yield point
        else:
            unreadable += 1
        if unreadable >= MOST_UNREADABLE:
            return


def summary_before(store: Store, run: Run, number: int, now: datetime) -> dict[str, MetricSummary] | None:
    """Of all points that attempts before this one have stored. None where there are none, or too many to read."""
    found: dict[str, MetricSummary] = {}
    for attempt in (one for one in run.attempts if one.number < number):
        keys = [layout.metrics(run.id, attempt.number, member.node) for member in attempt.members]
        if any(_is_large(store, key) for key in keys):
            return None
        nodes = [summed((one.values, one.step) for one in points(store, key, now)) for key in keys]
        # What several nodes report, the first of them says for all.
        found = joined_metrics(found, {name: one for node in reversed(nodes) for name, one in node.items()})
    return found or None


def _is_large(store: Store, key: str) -> bool:
    try:
        return bool(store.get(key, _SUMMED_BYTES, 1))
    except Missing:
        return False

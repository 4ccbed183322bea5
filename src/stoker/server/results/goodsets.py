"""The valid checkpoints of a run, read from its store as another attempt would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from stoker.errors import Malformed, Missing
from stoker.model import untrusted
from stoker.model.checkpoint import CheckpointSet, Fence, Position, claim, visible
from stoker.model.workspace import layout
from stoker.stores import Store


def good_sets(store: Store, run_id: str, now: datetime, node: int = 0) -> Iterator[CheckpointSet]:
    """Newest first. Unreadable sets, and those that differ from what was committed, do not count."""
    for position in visible(_positions(store, run_id, node), _fences(store, run_id, node, now)):
        with suppress(Missing, Malformed):
            key = layout.checkpoint_set(run_id, *position, node)
            found = untrusted.fetch(CheckpointSet, store, key, untrusted.MANIFEST_BYTES, now)
            if found.whole and found.position == position:
                yield found


def _fences(store: Store, run_id: str, node: int, now: datetime) -> list[Fence]:
    """An unreadable one still fences off earlier attempts, but hides no set."""
    found = []
    for stored in store.list(layout.fences(run_id, node).rstrip("/")):
        with suppress(ValueError):
            attempt, incarnation = layout.fence_mark(stored.key)
            try:
                fence = untrusted.fetch(Fence, store, stored.key, untrusted.SMALL_BYTES, now)
                found.append(replace(fence, attempt=attempt, incarnation=incarnation))
            except (Missing, Malformed):
                found.append(claim(attempt, incarnation))
    return found


def _positions(store: Store, run_id: str, node: int) -> list[Position]:
    found = []
    for stored in store.list(layout.checkpoint_sets(run_id, node).rstrip("/")):
        with suppress(ValueError):  # other keys are ignored
            found.append(layout.checkpoint_position(stored.key))
    return found

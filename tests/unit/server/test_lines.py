"""Lines that no agent wrote cost the server almost nothing, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from stoker.model.run.run import Attempt, AttemptState, Event, Run
from stoker.model.workspace import layout
from stoker.server.api.results import MOST_LINES, _offset_at, _page, last_step
from stoker.server.results.figures import MOST_UNREADABLE, PIECE_BYTES
from stoker.server.rounds.reports import agent_events, told_once
from stoker.testing.fakes import MemoryStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ATTEMPT = Attempt(1, "r-1", AttemptState.RUNNING, NOW - timedelta(days=40))
POINT = b'{"at": 1.0, "rank": 0, "values": {"loss": 1.0}, "step": 7}\n'
EVENT = b'{"at": "2026-02-01T00:00:00Z", "kind": "x", "text": "y"}\n'


class CountingStore(MemoryStore):
    asked_bytes = 0

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        found = super().get(key, start, size)
        self.asked_bytes += len(found)
        return found


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def test_the_events_of_a_node_are_not_read_beyond_thousands_of_lines_that_are_none(store: CountingStore) -> None:
    store.put(layout.events("r", 1), EVENT + b"\n" * (3 * PIECE_BYTES))
    first, last = agent_events(store, "r", ATTEMPT, NOW)
    assert first.text == "y"
    assert last.text.startswith(f"at least {MOST_UNREADABLE} lines of the events of attempt 1 cannot be read")
    assert store.asked_bytes == PIECE_BYTES


def test_a_nodes_clock_moves_no_event_out_of_the_time_of_its_attempt(store: CountingStore) -> None:
    times = ["1999-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-08-01T00:00:00Z"]
    said = [EVENT.replace(b"2026-02-01T00:00:00Z", time.encode()) for time in times]
    store.put(layout.events("r", 1), b"".join(said))
    found = [event.at for event in agent_events(store, "r", ATTEMPT, NOW)]
    assert found == [ATTEMPT.asked_at, datetime(2026, 2, 1, tzinfo=UTC), NOW]


def test_nor_are_its_metrics(store: CountingStore) -> None:
    store.put(layout.metrics("r", 1), POINT + b"\n" * (3 * PIECE_BYTES))
    assert last_step(store, "r", 1, NOW) == 7
    assert store.asked_bytes == PIECE_BYTES


def test_a_page_of_metrics_ends_also_where_no_line_is_a_point(
    store: CountingStore, make_run: Callable[..., Run]
) -> None:
    run = make_run(id="r", attempts=(Attempt(1, "r-1", AttemptState.RUNNING, NOW),))
    store.put(layout.metrics("r", 1), POINT + b"\n" * (MOST_LINES + 10) + POINT)
    page = _page(store, run, 0, NOW)
    assert (len(page.points), page.next, page.unreadable, page.more) == (1, MOST_LINES, MOST_LINES - 1, True)
    page = _page(store, run, 1, NOW)
    assert (len(page.points), page.next, page.more) == (0, MOST_LINES + 1, False), "there is no end to them"


def test_nor_are_the_times_of_its_log(store: CountingStore) -> None:
    store.put(layout.log_times("r", 1, 0), b"[5, 100.0]\n" + b"\n" * (3 * PIECE_BYTES) + b"[9, 101.0]\n")
    assert _offset_at(store, "r", 1, 0, 1000.0) == 5
    assert store.asked_bytes == PIECE_BYTES


def test_where_metrics_were_found_is_reported_once_in_a_run_whatever_its_attempts_say() -> None:
    first = Event(NOW, "metrics", "metrics found in names and numbers: loss (in `epoch 1 loss: 0.5`)")
    again = Event(NOW, "metrics", "metrics found in names and numbers: loss, acc (in `epoch 7 loss: 0.4 acc: 1.0`)")
    other = Event(NOW, "metrics", "metrics found in Keras's progress bars: loss (in `10/10 ...`)")
    evicted = Event(NOW, "evicted", "metrics found in names and numbers: it is not about metrics")
    assert told_once([first, evicted, again, other, evicted]) == [first, evicted, other, evicted]

"""What a node wrote is of its type and within bounds, or refused; never anything else, and never at any cost."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from forging import NOW, fitting, forged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import Malformed
from stoker.model import untrusted, wire
from stoker.model.orders import VisitEnd, Wishes
from stoker.model.run.report import Effort, Measured, MetricSummary, Phase, Report
from stoker.model.run.run import Event
from stoker.model.snapshot import CheckpointSet, Entry, Fence, Snapshot
from stoker.server.results.figures import lines
from stoker.testing.fakes import MemoryStore

WRITTEN = [Report, Snapshot, CheckpointSet, Fence, VisitEnd, Wishes, Event, Measured]
REPORT = Report(1, 0, Phase.RUNNING, NOW, beat=3, metrics={"loss": MetricSummary(1.0, 0.5, 2.0, 4)})
PLAIN = wire.to_plain(REPORT)
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def check_reader(of: type[Any], data: bytes) -> None:
    try:
        found = untrusted.load(of, data, NOW)
    except Malformed as error:
        assert 0 < len(error.message) < 1000
        error.message.encode()
        return
    json.dumps(wire.to_plain(found), ensure_ascii=False).encode()
    assert_sound(found)


def assert_sound(value: Any) -> None:
    """Every time has a zone, every text can be sent, and every number can be reckoned with."""
    if is_dataclass(value):
        for one in fields(value):
            assert_sound(getattr(value, one.name))
    elif isinstance(value, tuple):
        for item in value:
            assert_sound(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            assert_sound(key)
            assert_sound(item)
    elif isinstance(value, datetime):
        assert value.tzinfo is UTC
        assert value - NOW < timedelta(days=367)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, int | float):
        assert value != float("inf")
    else:
        assert value is None or not isinstance(value, list | dict | set | bytes)


@pytest.mark.parametrize("of", WRITTEN)
@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_whatever_is_forged_is_read_soundly_or_refused(of: type[Any], data: st.DataObject) -> None:
    check_reader(of, data.draw(forged(of)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("of", WRITTEN)
@settings(max_examples=10_000, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_ten_thousand_forgeries_are_read_soundly_or_refused(of: type[Any], data: st.DataObject) -> None:
    check_reader(of, data.draw(forged(of)))


@pytest.mark.parametrize("of", WRITTEN)
@settings(max_examples=40, deadline=None, suppress_health_check=QUIET)
@given(data=st.data())
def test_what_an_agent_writes_is_read_as_it_was(of: Any, data: st.DataObject) -> None:
    value = data.draw(fitting(of))
    assert untrusted.load(of, wire.dump(value), NOW) == value


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("at", "2026-03-01T12:00:00", "at: found '2026-03-01T12:00:00', expected a time with its zone"),
        ("at", "2036-03-01T12:00:00+00:00", "and not one in the far future"),
        ("metrics", {"loss": {"last": [1], "least": 0, "most": 1, "count": 1}}, "metrics.loss.last: found a list"),
        ("metrics", [], "metrics: found a list, expected a mapping"),
        ("save_s", -1, "save_s: found -1, expected a finite number of 0 to 1e+09"),
        ("save_s", None, "save_s: found nothing"),
        ("beat", True, "beat: found a truth value, expected a whole number"),
        ("beat", 10**30, "beat: found a huge number"),
        ("phase", "asleep", "phase: found 'asleep', expected one of unpacking"),
        ("progress", 1.5, "progress: found 1.5, expected a finite number of 0 to 1"),
        ("message", "x" * 40_000, "message: found 'xxx"),
        ("log_bytes", {"0": -1}, "log_bytes.0: found -1"),
        ("stays", 1, "stays: found 1, expected true or false"),
        ("effort", {"at": NOW.isoformat(), "phases": {"resting": 1.0}}, "effort.phases.resting: found 'resting'"),
        ("effort", {"at": NOW.isoformat(), "phases": {"running": -1.0}}, "effort.phases.running: found -1.0"),
        ("effort", {"at": NOW.isoformat(), "evicted_at": [NOW.isoformat()] * 1001}, "effort.evicted_at: found"),
        ("effort", {}, "effort: a Effort without `at`"),
    ],
)
def test_a_report_that_does_not_fit_says_where(field: str, value: Any, why: str) -> None:
    with pytest.raises(Malformed) as refused:
        untrusted.read(Report, PLAIN | {field: value}, NOW)
    assert why in refused.value.message


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xfe", b"[" * 900, b"[" * 10**6, b"1" * 5000, b"[]", b"null", b"1e999"]
)
def test_what_is_no_report_at_all_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        untrusted.load(Report, data, NOW)


@pytest.mark.parametrize(
    "entry",
    [
        {"path": 5},
        {"path": ""},
        {"path": "../x"},
        {"path": "a/../../x"},
        {"path": "/x"},
        {"path": "C:\\x"},
        {"path": "..\\x"},
        {"path": "a\0b"},
        {"path": "\udce9"},
        {"path": "x" * 5000},
        {"path": "a/" * 1000 + "a"},
        {"path": "a", "sha256": "../../other/outputs"},
        {"path": "a", "sha256": "A" * 64},
        {"path": "a", "size_bytes": -1},
        {"path": "a", "size_bytes": True},
        {"path": "a", "kind": []},
        {"path": "a", "kind": "link", "sha256": ""},
        {"path": "a", "kind": "link", "sha256": "", "target": "b\0"},
        {"path": "a", "executable": "yes"},
    ],
)
def test_an_entry_that_could_lead_elsewhere_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(Malformed, match=r"entries\.1"):
        good = {"path": "good", "sha256": "0" * 64, "size_bytes": 3}
        untrusted.read(Snapshot, {"entries": [good, {"sha256": "0" * 64, **entry}]}, NOW)


def test_text_that_is_not_unicode_is_escaped_since_nobody_could_store_or_show_it() -> None:
    said = untrusted.read(Report, PLAIN | {"message": "caf\udce9 was not found"}, NOW)
    assert said.message == "caf\\udce9 was not found"


def test_keys_of_a_newer_agent_are_ignored() -> None:
    assert untrusted.read(Report, PLAIN | {"mood": {"good": [1]}}, NOW) == REPORT


def test_a_time_of_another_zone_is_the_same_moment_in_utc() -> None:
    said = untrusted.read(Report, PLAIN | {"at": "2026-03-01T14:00:00+02:00"}, NOW)
    assert (said.at, said.at.tzinfo) == (NOW, UTC)


def test_what_a_metric_cannot_be_as_json_is_not_a_number() -> None:
    summary = wire.to_plain(MetricSummary(float("nan"), 0.0, 1.0, 1))
    said = untrusted.read(Report, PLAIN | {"metrics": {"loss": summary}}, NOW)
    assert said.metrics["loss"].last != said.metrics["loss"].last


class Endless(MemoryStore):
    """Every object is endless. Records how much of it was requested."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        assert size is not None, "all of it was asked for"
        self.most = max(self.most, size)
        return b"x" * size


def test_no_more_than_its_kind_may_have_is_read_of_an_object() -> None:
    store = Endless()
    with pytest.raises(Malformed):
        untrusted.fetch(Report, store, "report.json", untrusted.REPORT_BYTES, NOW)
    assert store.most == untrusted.REPORT_BYTES + 1


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"0,", b"[[],", b'"",'])
def test_json_that_would_take_far_more_memory_than_its_bytes_is_refused_unparsed(piece: bytes) -> None:
    data = b"[" + piece * (1_000_000 // len(piece)) + b"0]"
    tracemalloc.start()
    with pytest.raises(Malformed):
        untrusted.load(Report, data, NOW)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_a_manifest_of_half_a_million_files_is_read_and_one_of_more_is_not() -> None:
    row = wire.dump(Entry("checkpoints/model/shard.safetensors", sha256="0" * 64, size_bytes=1))
    few = b'{"entries":[' + b",".join([row] * 1000) + b"]}"
    assert len(untrusted.load(Snapshot, few, NOW).entries) == 1000
    many = [wire.to_plain(Entry("a", sha256="0" * 64))] * (untrusted.MOST_ITEMS + 1)
    with pytest.raises(Malformed, match=r"\b500000\b"):
        untrusted.read(Snapshot, {"entries": many}, NOW)


def test_an_agent_at_its_most_talkative_is_read() -> None:
    """A thousand metrics with the longest names, and all other fields."""
    summaries = {f"{number:04d}{'ä' * 196}": MetricSummary(0.1, 1e-300, 1e300, 10**9, 10**9) for number in range(1000)}
    effort = Effort(NOW, {str(phase): 1e6 for phase in Phase})
    logs = {str(rank): 10**15 for rank in range(1000)}
    said = replace(REPORT, metrics=summaries, effort=effort, log_bytes=logs, message="x" * 30_000)
    data = wire.dump(said)
    assert len(data) < untrusted.REPORT_BYTES
    assert untrusted.load(Report, data, NOW) == said
    dense = json.dumps({"at": 1.5, "rank": 0, "step": 1, "values": {f"m{n}": 1 for n in range(1000)}}).encode()
    assert len(untrusted.load(Measured, dense, NOW).values) == 1000


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=9).map(lambda one: one.replace(b"\n", b""))), st.integers(1, 7))
def test_lines_are_those_that_were_appended_however_they_are_read(said: list[bytes], piece: int) -> None:
    store = MemoryStore()
    store.put("lines", b"".join(one + b"\n" for one in said) + b"a line that has just begun")

    class Short(MemoryStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
            return store.get(key, start, piece)

    assert list(lines(Short(), "lines", 1 << 20)) == said


def test_a_line_without_end_is_passed_over_and_not_held_in_memory() -> None:
    store = MemoryStore()
    store.put("lines", b"first\n" + b"x" * (3 * untrusted.LINE_BYTES) + b"\nlast\n")
    assert list(lines(store, "lines", 1 << 30)) == [b"first", b"", b"last"]
    assert list(lines(Endless(), "lines", 40 << 20)) == []

"""Facts are stored and sent as JSON, and come back as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node import Offer
from stoker.model.orders import Orders, Wish, Wishes
from stoker.model.run.report import MetricSummary, Outcome, Phase, RankEnd, Report
from stoker.model.run.run import Attempt, AttemptState, Event, Run, Submission
from stoker.model.snapshot import Entry, EntryKind, Git, Snapshot

NOW = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)
JOB = Job(name="ants", run="python train.py", budget="$5", stop_when="hr@10 >= 0.979", spot=True)  # type: ignore[arg-type]  # as people write it

ALL = [Run, Report, Orders, Wishes, Attempt, Event, Snapshot, Submission, Offer]
FIXED: dict[Any, st.SearchStrategy[Any]] = {
    Job: st.just(JOB),
    str: st.text(max_size=6),
    int: st.integers(),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=st.just(UTC)),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False),
}
foreign: st.SearchStrategy[Any] = (
    st.none() | st.integers() | st.text(max_size=6) | st.just([None]) | st.just({"x": None}) | st.just([{}])
)


@cache
def anything(of: Any) -> st.SearchStrategy[Any]:
    """Every value of a type, with none of its fields left at the default."""
    inner = get_args(of)
    if get_origin(of) in (Union, UnionType):
        return st.one_of([anything(arm) for arm in inner])
    if get_origin(of) is tuple:
        return st.lists(anything(inner[0]), max_size=2).map(tuple)
    if get_origin(of) is Mapping:
        return st.dictionaries(anything(inner[0]), anything(inner[1]), max_size=2)
    if of in FIXED:
        return FIXED[of]
    if isinstance(of, type) and is_dataclass(of):
        return st.builds(of, **{name: anything(hint) for name, hint in get_type_hints(of).items()})
    return st.none() if of is NoneType else st.sampled_from(list(of))


@pytest.mark.parametrize("of", ALL)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_dumped_is_loaded_as_it_was(of: Any, data: st.DataObject) -> None:
    value = data.draw(anything(of))
    assert wire.load(of, wire.dump(value)) == value


@pytest.mark.parametrize("of", ALL)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_foreign_data_is_read_or_refused_in_one_of_three_ways(of: Any, data: st.DataObject) -> None:
    whole = wire.to_plain(data.draw(anything(of)))
    fields = [name for name in whole if name != "job"]  # a job has its own way of refusing
    whole[data.draw(st.sampled_from(fields))] = data.draw(foreign)
    with suppress(KeyError, TypeError, ValueError):
        wire.from_plain(of, whole)


def test_a_report_is_readable_json() -> None:
    report = Report(
        attempt=1,
        node=0,
        phase=Phase.DONE,
        at=NOW,
        beat=7,
        ranks=(RankEnd(0, exit_code=0),),
        outcome=Outcome.SUCCEEDED,
        metrics={"loss": MetricSummary(0.1, 0.1, 2.0, 30, step=29.0)},
    )
    data = json.loads(wire.dump(report))
    assert data["phase"] == "done"
    assert data["at"] == "2026-03-01T12:30:15.123456+00:00"
    assert data["ranks"] == [{"rank": 0, "exit_code": 0, "signal": None}]
    assert data["metrics"]["loss"] == {"last": 0.1, "least": 0.1, "most": 2.0, "count": 30, "step": 29.0}
    assert wire.load(Report, wire.dump(report)) == report


def test_enums_decimals_and_tuples_come_back_as_themselves() -> None:
    attempt = Attempt(1, "key", AttemptState.LOST, NOW)
    read = wire.load(Attempt, wire.dump(attempt))
    assert read.state is AttemptState.LOST
    assert wire.load(Offer, wire.dump(Offer("local", "this", "here", Decimal("0.10")))).usd_per_hour == Decimal("0.10")
    snapshot = Snapshot((Entry("a", EntryKind.LINK, target="b"),))
    assert wire.load(Snapshot, wire.dump(snapshot)) == snapshot


def test_a_job_inside_a_run_is_written_as_people_write_it() -> None:
    run = Run("id", "ants-1", 1, JOB, "s", "python3", NOW, git=Git("c" * 40, "trunk", dirty=True))
    data = json.loads(wire.dump(run))
    assert data["job"]["stop_when"] == "hr@10 >= 0.979"
    assert data["job"]["budget"] == "5"
    assert wire.load(Run, wire.dump(run)) == run


def test_keys_of_a_newer_program_are_ignored() -> None:
    data = wire.to_plain(Wishes(Wish.CANCEL, "asked to")) | {"urgency": 11}
    assert wire.from_plain(Wishes, data) == Wishes(Wish.CANCEL, "asked to")


def test_keys_that_an_older_program_did_not_write_have_their_default() -> None:
    assert wire.from_plain(Wishes, {}) == Wishes()


def test_a_key_that_must_be_there_is_missed() -> None:
    with pytest.raises(TypeError):
        wire.from_plain(Event, {"at": NOW.isoformat()})


def test_times_of_other_zones_are_the_same_moment() -> None:
    event = Event(NOW.astimezone(timezone(timedelta(hours=2))), "kind", "text")
    assert wire.load(Event, wire.dump(event)).at == NOW


def test_text_that_is_not_unicode_can_be_told() -> None:
    """A message may quote a file name whose bytes are not UTF-8."""
    event = Event(NOW, "kind", "caf\udce9")
    assert wire.load(Event, wire.dump(event)) == event


def test_a_snapshot_of_a_tree_has_the_same_id_whatever_its_order() -> None:
    entries = (Entry("b", EntryKind.FILE, "1" * 64, 3), Entry("a", EntryKind.FOLDER))
    assert Snapshot(entries).id == Snapshot(entries[::-1]).id
    changes = [{"path": "c"}, {"sha256": "2" * 64}, {"executable": True}]
    others = {Snapshot((replace(entries[0], **change), entries[1])).id for change in changes}  # type: ignore[arg-type]
    assert len(others | {Snapshot(entries).id}) == 4

"""How an agent reports its time: every second is in one phase, and it is known what is saved."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stoker.agent.attempt.reporting import EffortMeter, Witnesses, kept
from stoker.checkpoint.save.take import Toll
from stoker.model.run.report import Effort, Phase
from stoker.model.snapshot import CheckpointSet
from stoker.model.wire import dump, load


class Watch:
    """A clock that moves on demand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def watch() -> Watch:
    return Watch()


class Work:
    """The answers that the meter gets."""

    def __init__(self) -> None:
        self.made: CheckpointSet | None = None
        self.idle_since: float | None = None


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def meter(tmp_path: Path, watch: Watch, work: Work) -> EffortMeter:
    return EffortMeter(tmp_path / "toll", Witnesses(lambda: work.made, idle_since=lambda: work.idle_since), watch)


def a_set(age_s: float, attempt: int = 1, number: int = 1, step: float | None = None) -> CheckpointSet:
    """Written so long ago, and committed just now."""
    now = datetime.now(UTC)
    written = now - timedelta(seconds=age_s)
    return CheckpointSet(attempt, number, now, (), step, {}, {"a": int(written.timestamp() * 1e9), "b": 5})


def go(meter: EffortMeter, watch: Watch, *phases: tuple[Phase, float]) -> None:
    for phase, seconds in phases:
        meter.enter(phase)
        watch.now += seconds


def test_every_second_is_counted_in_one_phase(meter: EffortMeter, watch: Watch) -> None:
    watch.now += 2
    go(meter, watch, (Phase.STAGING, 3), (Phase.PREPARING, 4), (Phase.RUNNING, 5))
    effort = meter.now()
    assert effort.phases == {"unpacking": 2, "staging": 3, "preparing": 4, "running": 5}
    assert effort.counted_s == 14
    assert effort.running_s == 5


def test_what_comes_behind_the_last_word_is_not_counted(meter: EffortMeter, watch: Watch) -> None:
    go(meter, watch, (Phase.RUNNING, 5), (Phase.SAVING, 1), (Phase.DONE, 7))
    assert meter.now().counted_s == 6


def test_without_a_checkpoint_all_the_work_would_be_lost(meter: EffortMeter, watch: Watch) -> None:
    go(meter, watch, (Phase.RUNNING, 50))
    assert meter.now().unsaved_s == 50


def test_what_lies_behind_the_newest_checkpoint_would_be_lost(meter: EffortMeter, watch: Watch, work: Work) -> None:
    go(meter, watch, (Phase.RUNNING, 50))
    work.made = a_set(age_s=8, step=42)
    assert meter.now().unsaved_s == pytest.approx(8, abs=0.5)
    watch.now += 10
    effort = meter.now()
    assert effort.unsaved_s == pytest.approx(18, abs=0.5)
    assert effort.kept is not None
    assert (effort.kept.attempt, effort.kept.number, effort.kept.step) == (1, 1, 42)


def test_a_script_that_has_ended_loses_no_more(meter: EffortMeter, watch: Watch, work: Work) -> None:
    go(meter, watch, (Phase.RUNNING, 50))
    work.made = a_set(age_s=8)
    meter.now()
    go(meter, watch, (Phase.SAVING, 100))
    assert meter.now().unsaved_s == pytest.approx(8, abs=0.5)


def test_a_script_that_waits_behind_its_last_save_does_nothing_that_could_be_lost(
    meter: EffortMeter, watch: Watch, work: Work
) -> None:
    go(meter, watch, (Phase.RUNNING, 50))
    work.made = a_set(age_s=0)
    work.idle_since = watch.now
    meter.now()
    watch.now += 6
    assert [meter.now().unsaved_s, meter.now().blocked_s] == pytest.approx([0, 6], abs=0.5)
    go(meter, watch, (Phase.SAVING, 100))
    assert [meter.now().unsaved_s, meter.now().blocked_s] == pytest.approx([0, 6], abs=0.5)


def test_what_was_put_back_saves_none_of_the_new_work(meter: EffortMeter, watch: Watch) -> None:
    meter.restored(a_set(age_s=1000, attempt=3, number=7, step=9), 1.5)
    go(meter, watch, (Phase.RUNNING, 20))
    effort = meter.now()
    assert effort.unsaved_s == 20
    assert effort.restored_s == 1.5
    assert effort.kept is None
    assert effort.began_from is not None
    assert (effort.began_from.attempt, effort.began_from.number, effort.began_from.step) == (3, 7, 9)


def test_a_set_whose_files_are_from_the_future_is_as_old_as_its_commit() -> None:
    made = a_set(age_s=-500)
    assert kept(made).at == made.at


def test_a_set_without_times_is_as_old_as_its_commit() -> None:
    now = datetime.now(UTC)
    assert kept(CheckpointSet(1, 1, now, ())).at == now


def test_ranks_say_how_long_they_have_waited_and_the_slowest_counts(
    meter: EffortMeter, watch: Watch, tmp_path: Path
) -> None:
    go(meter, watch, (Phase.RUNNING, 50))
    for rank, seconds in enumerate((0.25, 1.5)):
        toll = Toll(str(tmp_path / f"toll.{rank}"))
        toll.add(seconds)
        toll.add(1.0)
    assert meter.now().blocked_s == 2.5


def test_what_the_ranks_have_said_is_remembered_when_their_files_are_gone(
    meter: EffortMeter, watch: Watch, tmp_path: Path
) -> None:
    go(meter, watch, (Phase.RUNNING, 50))
    Toll(str(tmp_path / "toll.0")).add(1.5)
    meter.enter(Phase.SAVING)
    (tmp_path / "toll.0").unlink()
    assert meter.now().blocked_s == 1.5


def test_a_rank_that_claims_more_than_there_was_is_not_believed(
    meter: EffortMeter, watch: Watch, tmp_path: Path
) -> None:
    go(meter, watch, (Phase.RUNNING, 50))
    (tmp_path / "toll.0").write_text("1e9")
    (tmp_path / "toll.1").write_text("rubbish")
    assert meter.now().blocked_s == 50


def test_outside_of_a_run_nothing_is_written(tmp_path: Path) -> None:
    toll = Toll(None)
    toll.add(1.0)
    assert toll.total_s == 1.0
    assert list(tmp_path.iterdir()) == []


def test_an_effort_survives_its_journey(meter: EffortMeter, watch: Watch) -> None:
    meter.restored(a_set(age_s=10), 1.0)
    go(meter, watch, (Phase.RUNNING, 20))
    effort = meter.now()
    assert load(Effort, dump(effort)) == effort


def test_a_machine_that_was_restored_adds_to_what_the_one_before_it_did(tmp_path: Path) -> None:
    watch, now = Watch(), datetime.now(UTC)
    before = Effort(
        now,
        {"unpacking": 2.0, "running": 60.0},
        restored_s=1.0,
        blocked_s=4.0,
        unsaved_s=15.0,
        undone_s=5.0,
        evicted_at=(now - timedelta(hours=1),),
        kept=kept(a_set(15.0)),
    )
    meter = EffortMeter(tmp_path / "toll", clock=watch)
    meter.continue_from(before)
    watch.now += 3
    meter.restored(a_set(15.0), 2.0)
    go(meter, watch, (Phase.PREPARING, 1), (Phase.RUNNING, 10))
    effort = meter.now()
    assert effort.phases == {"unpacking": 5.0, "running": 70.0, "preparing": 1.0}
    assert (effort.restored_s, effort.blocked_s) == (3.0, 4.0)
    assert (effort.undone_s, effort.evicted_at) == (20.0, (now - timedelta(hours=1), now))
    assert effort.unsaved_s == 10.0, "of this machine's own work"
    assert effort.began_from is None, "the attempt itself began from nothing"

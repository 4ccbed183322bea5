"""The ranks of an attempt, played: what becomes of a notice, an order to stop and a fault while they run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from attemptworld import PlayedRanks, World

from stoker.model.cause import Cause
from stoker.model.run.report import Outcome, Phase

pytestmark = pytest.mark.usefixtures("nothing_goes_on")


def test_a_script_that_ends_by_itself_succeeds_and_its_words_are_in_the_store(tmp_path: Path) -> None:
    def play(ranks: PlayedRanks) -> int:
        ranks.prints("loss=0.5\n")
        (world.folder.work / "outputs" / "model.pt").write_bytes(b"weights")
        return 0

    world = World(tmp_path, play)
    report = world.carry_out()
    assert (report.phase, report.outcome, report.exit_code) == (Phase.DONE, Outcome.SUCCEEDED, 0)
    assert (world.log(), report.output_files) == ("loss=0.5\n", 1)
    assert report.effort is not None and Phase.RUNNING in report.effort.phases


def test_a_script_that_fails_is_a_failure(tmp_path: Path) -> None:
    def play(ranks: PlayedRanks) -> int:
        ranks.prints("/bin/sh: 1: pythn: not found\n")
        return 127

    report = World(tmp_path, play).carry_out()
    assert (report.outcome, report.exit_code) == (Outcome.FAILED, 127)
    assert "pythn" in report.message


def test_an_order_to_stop_while_the_script_runs_ends_it_and_ships_what_it_printed(tmp_path: Path) -> None:
    def play(ranks: PlayedRanks) -> None:
        ranks.prints("working\n")
        world.crew.stopping.ask(Outcome.CANCELLED, "somebody cancelled it")

    world = World(tmp_path, play)
    report = world.carry_out()
    assert (report.outcome, report.cause) == (Outcome.CANCELLED, Cause.CANCELLED)
    assert world.log() == "working\n"


def test_a_script_that_heeds_a_notice_is_evicted_and_what_it_saved_is_committed(tmp_path: Path) -> None:
    def play(ranks: PlayedRanks) -> int | None:
        if not ranks.commands or not world.crew.notices.posted("machine"):
            world.notice()
        if not ranks.told:
            return None
        (world.folder.work / "checkpoints" / "last.pt").write_bytes(b"weights")
        return 0

    world = World(tmp_path, play)
    report = world.carry_out()
    assert (report.outcome, report.exit_code) == (Outcome.EVICTED, 0)
    assert report.checkpoint_files == 1
    assert "notice" in world.events()


def test_a_script_that_says_it_has_finished_in_spite_of_a_notice_succeeds(tmp_path: Path) -> None:
    def play(ranks: PlayedRanks) -> int | None:
        world.notice()
        if not ranks.told:
            return None
        world.folder.finished.touch()
        return 0

    world = World(tmp_path, play)
    assert world.carry_out().outcome is Outcome.SUCCEEDED


def test_a_notice_that_is_withdrawn_leaves_the_script_running(tmp_path: Path) -> None:
    looks: list[bool] = []

    def play(_: PlayedRanks) -> int | None:
        looks.append(world.folder.notice.exists())
        if looks == [False]:
            world.notice()
        elif looks[-1]:
            world.crew.notices.post("machine", None)
        return 0 if len(looks) > 1 and not looks[-1] else None

    world = World(tmp_path, play)
    world.ranks._listens = False
    report = world.carry_out()
    assert looks == [False, True, False]
    assert report.outcome is Outcome.SUCCEEDED


def test_checkpoints_that_the_store_refuses_are_tried_until_it_takes_them(tmp_path: Path) -> None:
    def play(_: PlayedRanks) -> int | None:
        saved = world.folder.work / "checkpoints" / "last.pt"
        if not saved.exists():
            world.store.full("checkpoints/files", 2)
            saved.write_bytes(b"weights")
        return 0

    world = World(tmp_path, play)
    report = world.carry_out()
    assert (report.outcome, report.checkpoint_files) == (Outcome.SUCCEEDED, 1)
    assert "checkpoint-failed" in world.events()
    assert "the disk is full" in report.message


def test_a_later_attempt_that_has_taken_over_ends_this_one(tmp_path: Path) -> None:
    def play(_: PlayedRanks) -> None:
        world.crew._fenced_off()

    world = World(tmp_path, play)
    report = world.carry_out()
    assert (report.outcome, report.cause) == (Outcome.CANCELLED, Cause.FENCED)


def test_the_time_limit_counts_what_earlier_machines_have_worked(tmp_path: Path) -> None:
    world = World(tmp_path, lambda _: None, time_limit="1h")
    object.__setattr__(world.attempt.run, "worked_s", 3600.0)
    begun = time.monotonic()
    report = world.carry_out()
    assert report.outcome is Outcome.TIMED_OUT
    assert time.monotonic() - begun < 60


def test_the_fuse_ends_a_script_that_does_not_save_in_time(tmp_path: Path) -> None:
    def play(_: PlayedRanks) -> None:
        world.crew._blow("the budget is nearly spent")

    world = World(tmp_path, play)
    report = world.carry_out()
    assert (report.outcome, world.ranks.grace_s) == (Outcome.BUDGET_REACHED, 0.5)


def test_a_target_that_the_last_line_reaches_is_reached(tmp_path: Path) -> None:
    def play(ranks: PlayedRanks) -> int:
        ranks.prints('{"acc": 0.95}\n')
        return 0

    report = World(tmp_path, play, stop_when="acc >= 0.9").carry_out()
    assert report.outcome is Outcome.TARGET_REACHED


def test_a_metric_that_was_never_reported_is_named_at_the_end(tmp_path: Path) -> None:
    report = World(tmp_path, stop_when="acc >= 0.9").carry_out()
    assert report.outcome is Outcome.SUCCEEDED
    assert "`acc`" in report.message


def test_a_bug_of_the_agent_breaks_the_attempt_and_is_reported(tmp_path: Path) -> None:
    def play(_: PlayedRanks) -> int:
        raise ValueError("a bug")

    report = World(tmp_path, play).carry_out()
    assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.AGENT_FAILED)
    assert "ValueError: a bug" in report.message


def test_outputs_are_files_of_the_store_when_the_report_says_so(tmp_path: Path) -> None:
    def play(_: PlayedRanks) -> int:
        (world.folder.work / "outputs" / "a").write_text("1")
        world.store.away("outputs", 2)
        return 0

    world = World(tmp_path, play)
    report = world.carry_out()
    assert (report.outcome, report.output_files, report.output_bytes) == (Outcome.SUCCEEDED, 1, 1)

"""Each phase of an attempt by itself, with faults: an unavailable store, a full disk, a notice, a stop."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from attemptworld import RUN, PlayedRanks, World

from stoker.agent.attempt import prepare
from stoker.agent.attempt.endings import AttemptBroken, Ending
from stoker.agent.attempt.prepare import Inputs
from stoker.agent.notice.stopping import NeedsRestart, Stopped
from stoker.agent.shipping import worker
from stoker.errors import StoreUnavailable
from stoker.model.cause import Cause
from stoker.model.orders import DataOrder, Orders
from stoker.model.run.report import Outcome, Phase
from stoker.model.workspace import layout
from stoker.stores.transfer.disk import disk_failed

pytestmark = pytest.mark.usefixtures("nothing_goes_on")


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No test waits for an unavailable store: time passes at once."""
    passed: list[float] = []
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: sum(passed), sleep=passed.append))
    return passed


def cancel(world: World) -> None:
    world.crew.stopping.ask(Outcome.CANCELLED, "somebody cancelled it")


# Unpacking


def test_unpacking_waits_for_a_store_that_is_away(tmp_path: Path, slept: list[float]) -> None:
    world = World(tmp_path)
    world.claim()
    world.store.away("snapshots/", 3)
    found = world.attempt.unpack(world.orders)
    assert found.code == {"train.py"}
    assert (world.folder.work / "train.py").read_text() == "print('hello')\n"
    assert (world.folder.work / "outputs").is_dir()
    assert len(slept) == 3


def test_unpacking_gives_up_on_a_store_that_stays_away(tmp_path: Path, slept: list[float]) -> None:
    world = World(tmp_path)
    world.claim()
    world.store.away("snapshots/", 10_000)
    with pytest.raises(StoreUnavailable):
        world.attempt.unpack(world.orders)
    assert sum(slept) >= worker.UNAVAILABLE_S


def test_an_order_to_stop_ends_the_wait_for_the_store(tmp_path: Path, slept: list[float]) -> None:
    world = World(tmp_path)
    world.claim()
    world.store.away("snapshots/", 10_000)
    world.store.hooks["snapshots/"] = lambda: cancel(world)
    with pytest.raises(Stopped):
        world.attempt.unpack(world.orders)
    assert not slept


def test_a_try_to_unpack_leaves_nothing_for_the_next(tmp_path: Path, slept: list[float]) -> None:
    world = World(tmp_path)
    world.claim()
    world.store.away("blobs/", 1)
    (world.folder.work / "half").write_text("of an earlier try")
    world.attempt.unpack(world.orders)
    assert not (world.folder.work / "half").exists()


def test_a_full_disk_breaks_unpacking_with_the_reason(
    tmp_path: Path, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise disk_failed("unpack", "train.py", OSError(errno.ENOSPC, "no space"))

    monkeypatch.setattr(prepare, "unpack", no_room)
    report = World(tmp_path).carry_out()
    assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.DISK_FULL)


def test_a_notice_while_code_is_unpacked_reaches_the_script(tmp_path: Path, slept: list[float]) -> None:
    """It gets the notice as soon as it runs, and may still save."""
    seen: list[bool] = []

    def play(ranks: PlayedRanks) -> int:
        seen.append(world.folder.notice.exists())
        return 0

    world = World(tmp_path, play)
    world.store.hooks["snapshots/"] = world.notice
    report = world.carry_out()
    assert seen == [True]
    assert report.outcome is Outcome.EVICTED


# Staging


class PlayedInputs(Inputs):
    """Data that arrives, or does not."""

    error: Exception | None = None
    released: int = 0

    def stage(self, orders: Orders) -> Mapping[str, str]:
        if self.error:
            raise self.error
        return {name: f"/data/{name}" for name in orders.inputs}

    def release(self) -> None:
        self.released += 1
        if self.error and isinstance(self.error, OSError):
            raise self.error


def staging(tmp_path: Path) -> tuple[World, PlayedInputs]:
    world = World(tmp_path, data={"x": {"dataset": "ants"}})
    world.orders = world.crew.orders = replace(world.orders, inputs={"x": DataOrder("ants@1")})
    inputs = PlayedInputs(world.store, world.machine, world.crew.stopping, world.crew.tell)
    world.attempt.stage = replace(world.attempt.stage, inputs=inputs)
    world.attempt.finish = replace(world.attempt.finish, inputs=inputs)
    return world, inputs


def test_staging_tells_where_the_data_is(tmp_path: Path) -> None:
    world, _ = staging(tmp_path)
    world.claim()
    assert world.attempt.stage(world.orders).data == {"x": "/data/x"}
    assert world.orders.data == {}, "orders are never changed"


def test_a_run_without_data_is_not_said_to_be_staging(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.claim()
    assert world.attempt.stage(world.orders) is world.orders
    assert world.report().phase is Phase.UNPACKING


def test_an_order_to_stop_while_data_is_staged_is_heeded_behind_it(tmp_path: Path) -> None:
    world, _ = staging(tmp_path)
    world.claim()
    cancel(world)
    with pytest.raises(Stopped):
        world.attempt.stage(world.orders)


@pytest.mark.parametrize(
    ("error", "outcome", "words"),
    [
        (StoreUnavailable("the store is away"), Outcome.CANCELLED, "its store cannot be used: the store is away"),
        (disk_failed("write", "x", OSError(errno.ENOSPC, "no space")), Outcome.BROKEN, "the disk is full"),
        (AttemptBroken("`x` is damaged", cause=Cause.INSTALL_FAILED), Outcome.BROKEN, "`x` is damaged"),
        (OSError(errno.EIO, "sector 7"), Outcome.BROKEN, "sector 7"),
    ],
    ids=["store away", "disk full", "broken", "disk broken"],
)
def test_data_that_does_not_arrive_ends_the_attempt_and_is_released(
    error: Exception, outcome: Outcome, words: str, tmp_path: Path, slept: list[float]
) -> None:
    world, inputs = staging(tmp_path)
    inputs.error = error
    report = world.carry_out()
    assert (report.outcome, words in report.message) == (outcome, True)
    assert inputs.released == 1
    assert not world.ranks.commands, "no script was started"


# Preparing


def test_preparing_finds_python_and_one_rank(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.claim()
    place = world.attempt.prepare(world.orders, "checkpoints/last.pt")
    assert (place.python, place.processes, place.newest) == (world.orders.python, 1, "checkpoints/last.pt")


def test_an_order_to_stop_while_preparing_starts_no_script(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.claim()
    cancel(world)
    with pytest.raises(Stopped):
        world.attempt.prepare(world.orders)


def test_preparing_continues_while_its_log_cannot_be_shipped(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.claim()
    world.store.away("logs/", 10_000)
    assert world.attempt.prepare(world.orders).processes == 1
    world.store.fails.clear()
    world.crew.shipping.logs.finish()


def test_requirements_that_are_not_there_break_the_attempt(tmp_path: Path, slept: list[float]) -> None:
    report = World(tmp_path, environment="requirements.txt").carry_out()
    assert report.outcome is Outcome.BROKEN
    assert "requirements.txt" in report.message


def test_a_machine_that_waits_for_its_restart_is_restarted(tmp_path: Path, slept: list[float]) -> None:
    mark = tmp_path / "reboot-required"
    mark.touch()
    world = World(tmp_path, given={"ready_s": 60.0, "reboot_mark": str(mark)})
    world.claim()
    with pytest.raises(NeedsRestart):
        world.attempt.prepare.await_ready(world.orders)
    ending = World(tmp_path, given={"ready_s": 60.0, "reboot_mark": str(mark)}).attempt.ending({})
    assert (ending.outcome, ending.needs_restart) == (Outcome.EVICTED, True)


# Shipping


def started(world: World) -> None:
    world.claim()
    world.attempt.run(world.orders, world.attempt.prepare(world.orders))


def test_shipping_waits_until_the_store_has_every_line(tmp_path: Path) -> None:
    def play(ranks: PlayedRanks) -> int:
        ranks.prints("first\nlast\n")
        world.store.away("logs/", 2)
        return 0

    world = World(tmp_path, play)
    started(world)
    ending = world.attempt.ship(world.orders, Ending(Outcome.SUCCEEDED, 0))
    assert ending == Ending(Outcome.SUCCEEDED, 0)
    assert world.log() == "first\nlast\n"


def test_a_shipper_that_fails_keeps_no_other_from_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def play(ranks: PlayedRanks) -> int:
        ranks.prints("everything\n")
        return 0

    world = World(tmp_path, play)
    started(world)
    broken = OSError(errno.EIO, "sector 7")
    monkeypatch.setattr(world.crew.noticing, "conclude", lambda: (_ for _ in ()).throw(broken))
    ending = world.attempt.ship(world.orders, Ending(Outcome.SUCCEEDED, 0))
    assert (ending.outcome, "sector 7" in ending.message) == (Outcome.BROKEN, True)
    assert world.log() == "everything\n"


def test_what_a_script_left_beside_its_outputs_is_shipped_when_the_store_is_back(
    tmp_path: Path, slept: list[float]
) -> None:
    def play(_: PlayedRanks) -> int:
        (world.folder.work / "model.pt").write_bytes(b"weights")
        world.store.away("stray-", 2)
        return 0

    world = World(tmp_path, play)
    started(world)
    assert world.attempt.ship(world.orders, Ending(Outcome.SUCCEEDED, 0)).outcome is Outcome.SUCCEEDED
    assert b"model.pt" in world.store.get(layout.stray(RUN, 1, 0))


def test_a_full_store_breaks_a_run_whose_stray_files_it_cannot_take(tmp_path: Path, slept: list[float]) -> None:
    def play(_: PlayedRanks) -> int:
        (world.folder.work / "model.pt").write_bytes(b"weights")
        world.store.full("stray-", 1)
        return 0

    world = World(tmp_path, play)
    started(world)
    ending = world.attempt.ship(world.orders, Ending(Outcome.SUCCEEDED, 0))
    assert (ending.outcome, ending.cause) == (Outcome.BROKEN, "store-failed")


def test_nothing_is_looked_for_that_a_script_left_before_it_was_started(tmp_path: Path, slept: list[float]) -> None:
    world = World(tmp_path)
    world.claim()
    (world.folder.work / "model.pt").write_bytes(b"weights")
    world.attempt.ship(world.orders, Ending(Outcome.CANCELLED))
    assert not [one for one in world.store.list("runs") if "stray" in one.key]


# Finishing


def test_the_final_report_is_tried_until_the_store_takes_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.claim()
    world.store.full("report.json", 3)
    world.attempt.finish(world.orders, Ending(Outcome.SUCCEEDED, 0))
    report = world.report()
    assert (report.phase, report.outcome) == (Phase.DONE, Outcome.SUCCEEDED)
    assert "the disk is full" in report.message, "the trouble with the store belongs to the report"


def test_nothing_is_left_in_the_node_s_folder(tmp_path: Path, slept: list[float]) -> None:
    world = World(tmp_path)
    world.claim()
    world.attempt.finish(world.orders, Ending(Outcome.SUCCEEDED, 0))
    assert not world.folder.work.exists()
    assert not world.folder.spool.exists()


class PlayedListener:
    approved = False

    def start(self) -> None: ...

    def finish(self) -> None: ...

    def stay(self) -> None:
        pass

    def approve(self) -> None:
        self.approved = True


@pytest.mark.parametrize("returns", [True, False])
def test_a_restart_is_approved_once_everything_is_safe(returns: bool, tmp_path: Path, slept: list[float]) -> None:
    world, listener = World(tmp_path), PlayedListener()
    world.attempt.finish = replace(world.attempt.finish, listener=listener)
    world.claim()
    world.notice(returns=returns)
    restarts = world.attempt.finish(world.orders, Ending(Outcome.EVICTED, 0))
    assert (restarts, listener.approved, world.report().stays) == (returns, returns, returns)


def test_data_that_cannot_be_released_is_a_failure_that_is_reported(tmp_path: Path, slept: list[float]) -> None:
    world, inputs = staging(tmp_path)
    inputs.error = OSError(errno.EBUSY, "still mounted")
    world.claim()
    world.attempt.finish(world.orders, Ending(Outcome.SUCCEEDED, 0))
    assert "still mounted" in world.report().message

"""Standing by a run: what is printed, in which order, and when it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import pytest

from stoker.cli.view import live as watching
from stoker.cli.view.live import LiveView, Selection
from stoker.cli.view.printer import LogSource
from stoker.client.api.handle import Log, RunHandle
from stoker.errors import Denied, NotFound, ServerUnavailable, StoreDenied, StoreUnavailable
from stoker.model.run.money import Spell
from stoker.model.run.report import MetricSummary
from stoker.model.run.run import Attempt, AttemptState, Event, Run, RunState

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MakeRun = Callable[..., Run]


def attempt(number: int, state: AttemptState = AttemptState.ENDED, **more: Any) -> Attempt:
    return Attempt(number, f"key-{number}", state, NOW, **more)


@dataclass
class FakeRun:
    """A handle whose run changes on demand; each rank prints its prepared lines."""

    story: list[Run]
    output: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    hold: threading.Event = field(default_factory=threading.Event)
    breaks: Exception | None = None

    @property
    def facts(self) -> Run:
        return self.story[0]

    def changes(self) -> Iterator[Run]:
        yield self.story[0]
        if self.breaks:
            raise self.breaks
        if len(self.story) > 1 and self.hold.is_set():
            self.hold.clear()
            self.hold.wait(5)
        yield from self.story[1:]

    def logs(self, rank: int, attempt: int, **options: Any) -> Iterator[bytes]:
        del options["waits"]
        self.asked.append({"rank": rank, "attempt": attempt, **options})
        if (attempt, rank) not in self.output:
            raise NotFound("no such log")
        yield from self.output[attempt, rank]

    def log_list(self) -> list[Log]:
        return [Log(number, rank, 0, True) for number, rank in self.output]

    def events(self) -> list[Event]:
        return [Event(NOW, "environment", "installing 12 packages")]


@dataclass
class Recorder:
    said: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    ranks: int = 1

    def text(self, source: LogSource, data: bytes) -> None:
        self.said.append(f"{source.attempt}.{source.rank} {data.decode()}")

    def finish(self, source: LogSource) -> None:
        self.said.append(f"{source.attempt}.{source.rank} finished")

    def event(self, name: str, facts: Run, **more: Any) -> None:
        self.said.append(f"event {name}")

    def note(self, text: str) -> None:
        self.said.append(text)

    def status(self, text: str) -> None:
        if text:
            self.statuses.append(text)


def why(facts: Run) -> str:
    return facts.reason or ("2 of 2 slots are busy" if facts.state is RunState.QUEUED else "")


def watch(run: FakeRun, wanted: Selection = watching.EVERYTHING) -> tuple[Run, Recorder]:
    recorder = Recorder()
    facts = LiveView(
        cast(RunHandle, run), recorder, lambda facts: facts.reason or "2 of 2 slots are busy", wanted
    ).until_end()
    return facts, recorder


def test_the_output_is_printed_and_then_it_is_over(make_run: MakeRun) -> None:
    queued = make_run()
    running = replace(queued, state=RunState.RUNNING, attempts=(attempt(1, AttemptState.RUNNING),))
    ended = replace(running, state=RunState.SUCCEEDED, attempts=(attempt(1),))
    facts, recorder = watch(FakeRun([queued, running, ended], {(1, 0): [b"a\n", b"b\n"]}))
    assert facts is ended
    assert recorder.said == ["1.0 a\n", "1.0 b\n", "1.0 finished"]


def test_attempts_come_one_after_the_other_and_say_what_became_of_the_last(make_run: MakeRun) -> None:
    attempts = (attempt(1, AttemptState.LOST, message="its node went away"), attempt(2))
    ended = make_run(state=RunState.SUCCEEDED, attempts=attempts)
    _, recorder = watch(FakeRun([ended], {(1, 0): [b"one"], (2, 0): [b"two"]}))
    assert recorder.said == [
        "1.0 one",
        "1.0 finished",
        "attempt 2 starts: its node went away",
        "event attempt",
        "2.0 two",
        "2.0 finished",
    ]


def test_following_begins_with_the_newest_attempt_where_it_was_left(make_run: MakeRun) -> None:
    ended = make_run(state=RunState.FAILED, attempts=(attempt(1), attempt(2), attempt(3)))
    run = FakeRun([ended], {(2, 0): [b"two"], (3, 0): [b"three"]})
    watch(run, Selection(first=2, since=NOW, offsets={0: 70}))
    assert run.asked == [
        {"rank": 0, "attempt": 2, "follow": True, "since": NOW, "offset": 70},
        {"rank": 0, "attempt": 3, "follow": True, "since": NOW, "offset": 0},
    ]


def test_all_ranks_are_shown_unless_one_is_chosen(make_run: MakeRun) -> None:
    ended = make_run(job={"nodes": 2, "processes": 2}, state=RunState.SUCCEEDED, attempts=(attempt(1),))
    output = {(1, rank): [b"x"] for rank in range(4)}
    _, all_ranks = watch(FakeRun([ended], output))
    assert sorted(all_ranks.said) == sorted(text for rank in range(4) for text in (f"1.{rank} x", f"1.{rank} finished"))
    assert all_ranks.ranks == 4
    _, one_rank = watch(FakeRun([ended], output), Selection(ranks=(2,)))
    assert one_rank.said == ["1.2 x", "1.2 finished"]


def test_with_one_rank_per_gpu_the_logs_tell_how_many_there_are(make_run: MakeRun) -> None:
    asked = make_run(job={"processes": "gpus"}, state=RunState.STARTING, attempts=(attempt(1, AttemptState.ASKED),))
    ended = replace(asked, state=RunState.SUCCEEDED, attempts=(attempt(1),))
    _, recorder = watch(FakeRun([asked, ended], {(1, 0): [b"x"], (1, 1): [b"y"]}))
    assert {"1.0 x", "1.1 y"} < set(recorder.said)
    assert recorder.ranks == 2


def test_an_attempt_that_never_printed_is_an_empty_one(make_run: MakeRun) -> None:
    ended = make_run(state=RunState.FAILED, attempts=(attempt(1, AttemptState.LOST),))
    assert watch(FakeRun([ended]))[1].said == ["1.0 finished"]


def test_a_run_cancelled_in_the_queue_is_over_at_once(make_run: MakeRun) -> None:
    assert watch(FakeRun([make_run(state=RunState.CANCELLED)]))[1].said == []


def test_a_run_that_is_paused_is_watched_no_longer(make_run: MakeRun) -> None:
    running = make_run(state=RunState.RUNNING, attempts=(attempt(1, AttemptState.RUNNING),))
    paused = replace(running, state=RunState.PAUSED, attempts=(attempt(1),))
    facts, recorder = watch(FakeRun([running, paused], {(1, 0): [b"one"]}))
    assert facts is paused
    assert recorder.said == ["1.0 one", "1.0 finished"]


def test_the_warning_that_a_budget_is_nearly_spent_is_shown_once(make_run: MakeRun) -> None:
    fresh = make_run(budget=Decimal(5))
    warned = replace(fresh, warned_usd=Decimal(5))
    ended = replace(warned, state=RunState.SUCCEEDED)
    said = watch(FakeRun([fresh, warned, ended]))[1].said
    assert said == ["most of its budget of $5.00 is spent: see `stoker budget ants-1`", "event budget-warning"]


def test_it_is_over_only_when_the_outputs_have_landed(make_run: MakeRun) -> None:
    landing = make_run(state=RunState.SUCCEEDED, land_in="/somewhere", output_files=1)
    landed = replace(landing, landed="/somewhere/ants-1")
    assert watch(FakeRun([landing, landed]))[0] is landed


@pytest.mark.parametrize(
    ("state", "facts", "said"),
    [
        (RunState.QUEUED, {}, "waiting: 2 of 2 slots are busy"),
        (RunState.QUEUED, {"reason": "waits for a new node"}, "waiting: waits for a new node"),
        (RunState.STARTING, {}, "starting: installing 12 packages"),
        (RunState.RUNNING, {}, "saving the outputs …"),
        (RunState.SUCCEEDED, {"land_in": "/x", "output_files": 1}, "downloading the outputs …"),
    ],
)
def test_what_takes_long_is_explained_once(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, state: RunState, facts: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(watching, "PATIENCE_S", 0.0)
    monkeypatch.setattr(watching, "_TICK_S", 0.001)
    monkeypatch.setattr(watching, "_ASK_EVERY_S", 0.0)
    waiting = make_run(state=state, **facts)
    run = FakeRun([waiting, replace(waiting, state=RunState.SUCCEEDED, land_in="")])
    run.hold.set()

    class Releasing(Recorder):
        def note(self, text: str) -> None:
            super().note(text)
            run.hold.set()

    recorder = Releasing()
    LiveView(cast(RunHandle, run), recorder, why).until_end()
    assert recorder.said == [said]


def test_a_run_that_costs_money_says_so_while_it_is_quiet(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PATIENCE_S", 0.0)
    monkeypatch.setattr(watching, "_TICK_S", 0.001)
    spell = Spell("key-1", datetime.now(UTC), None, Decimal("3.60"))
    waiting = make_run(state=RunState.STARTING, spells=(spell,), budget=Decimal(5))
    run = FakeRun([waiting, replace(waiting, state=RunState.SUCCEEDED)])
    run.hold.set()

    class Releasing(Recorder):
        def status(self, text: str) -> None:
            super().status(text)
            if text:
                run.hold.set()

    recorder = Releasing()
    LiveView(cast(RunHandle, run), recorder, why).until_end()
    assert "$3.60/h, $5.00 of $5.00 left" in recorder.statuses[0]


def test_trouble_of_a_source_is_reported_where_it_can_be_handled(make_run: MakeRun) -> None:
    with pytest.raises(Denied):
        watch(FakeRun([make_run()], breaks=Denied("gone for good")))


def test_outages_are_waited_for_and_told_once(make_run: MakeRun) -> None:
    running = make_run(state=RunState.RUNNING, attempts=(attempt(1, AttemptState.RUNNING),))
    ended = replace(running, state=RunState.SUCCEEDED, attempts=(attempt(1),))
    run = FakeRun([running, ended], {(1, 0): [b"a\n"]})
    recorder = Recorder()
    seen = LiveView(cast(RunHandle, run), recorder, why)
    for error in (StoreUnavailable("away"), StoreDenied("expired"), ServerUnavailable("nobody answers")):
        assert seen._waits(error)
    seen.until_end()
    assert recorder.said == ["waiting: away (Ctrl-C detaches; the run continues)", "1.0 a\n", "1.0 finished"]
    assert not seen._waits(StoreUnavailable("away")), "what an ended run printed can be read later"
    assert seen._waits(ServerUnavailable("away"))


def test_ranks_that_first_print_later_are_shown_where_the_node_decides_how_many_there_are(make_run: MakeRun) -> None:
    """With `processes: gpus` the ranks are unknown before they print."""
    running = make_run(
        job={"processes": "gpus"},
        state=RunState.RUNNING,
        attempts=(attempt(1, AttemptState.RUNNING, started_at=NOW),),
    )
    ended = replace(running, state=RunState.SUCCEEDED, attempts=(attempt(1, started_at=NOW),))
    run = FakeRun([running, ended])
    run.hold.set()
    recorder = Recorder()
    watching_it = LiveView(cast(RunHandle, run), recorder, lambda _facts: "")
    thread = threading.Thread(target=watching_it.until_end, daemon=True)
    thread.start()
    for _ in range(100):  # until it has looked for logs in vain
        if not run.hold.is_set():
            break
        threading.Event().wait(0.01)
    threading.Event().wait(0.3)
    run.output[1, 0] = [b"late\n"]
    run.output[1, 1] = [b"later\n"]
    run.hold.set()
    thread.join(5)
    assert sorted(recorder.said) == ["1.0 finished", "1.0 late\n", "1.1 finished", "1.1 later\n"]


def test_a_rank_that_prints_while_another_is_shown_is_not_forgotten(make_run: MakeRun) -> None:
    started = attempt(1, AttemptState.RUNNING, started_at=NOW)
    running = make_run(job={"processes": "gpus"}, state=RunState.RUNNING, attempts=(started,))
    ended = replace(running, state=RunState.SUCCEEDED, attempts=(attempt(1, started_at=NOW),))
    run = FakeRun([running, ended], {(1, 0): [b"first\n"]})

    def logs(rank: int, attempt: int, **_options: Any) -> Iterator[bytes]:
        run.output[1, 1] = [b"second\n"]
        yield from run.output[attempt, rank]

    run.logs = logs  # type: ignore[method-assign]
    _, recorder = watch(run)
    assert sorted(recorder.said) == ["1.0 finished", "1.0 first\n", "1.1 finished", "1.1 second\n"]


def test_a_metric_that_the_job_waits_for_in_vain_is_told_once(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_TROUBLE_EVERY_S", 0.0)
    running = make_run(
        job={"stop_when": "val_acc > 0.9"}, state=RunState.RUNNING, attempts=(attempt(1, AttemptState.RUNNING),)
    )
    ended = replace(running, state=RunState.SUCCEEDED, attempts=(attempt(1),))
    run = FakeRun([running, ended], {(1, 0): [b"a\n", b"b\n", b"c\n"]})
    run.events = lambda: [Event(NOW, "metric-missing", "warning: no val_acc")]  # type: ignore[method-assign]
    _, recorder = watch(run)
    assert recorder.said.count("warning: no val_acc") == 1


FOUND = Event(NOW, "metrics", "metrics found in names and numbers: loss (in `loss: 0.5`)")


def test_metrics_found_in_what_a_run_prints_are_told_once(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_TROUBLE_EVERY_S", 0.0)
    running = make_run(state=RunState.RUNNING, attempts=(attempt(1, AttemptState.RUNNING),))
    ended = replace(running, state=RunState.SUCCEEDED, attempts=(attempt(1),))
    run = FakeRun([running, ended], {(1, 0): [b"a\n", b"b\n", b"c\n"]})
    run.events = lambda: [FOUND]  # type: ignore[method-assign]
    _, recorder = watch(run)
    assert recorder.said.count(FOUND.text) == 1


def test_metrics_of_a_run_that_ends_at_once_are_reported_behind_what_it_printed(make_run: MakeRun) -> None:
    summary = {"loss": MetricSummary(0.5, 0.5, 0.5, 1, None)}
    ended = make_run(state=RunState.SUCCEEDED, attempts=(attempt(1),), metrics=summary)
    run = FakeRun([ended], {(1, 0): [b"loss: 0.5\n"]})
    run.events = lambda: [FOUND]  # type: ignore[method-assign]
    _, recorder = watch(run)
    assert recorder.said == ["1.0 loss: 0.5\n", "1.0 finished", FOUND.text]

"""Which rank the others wait for, and when a run hangs at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from stoker.engine.decision import Decision, Sighting, TellAgent
from stoker.engine.hanging import MOST_FRAMES_KEPT, MOST_HANGS, behind, diagnosed, noted, restarts
from stoker.engine.lifecycle import begin
from stoker.engine.nodes.gang import advance
from stoker.model.job.sections import HangRule
from stoker.model.node import NodeSight, NodeState
from stoker.model.run.report import Outcome, Phase, RankEnd, Report
from stoker.model.run.run import Member, Run
from stoker.model.run.stacks import RankStacks, StackFrame, Standstill, ThreadStack, named_ranks
from stoker.model.wire import dump, load

C10D = "torch/distributed/distributed_c10d.py"
MakeRun = Callable[..., Run]


def rank(number: int, *frames: StackFrame, note: str = "") -> RankStacks:
    return RankStacks(number, (ThreadStack("main thread", frames),) if frames else (), note)


def waiting(number: int, operation: str = "all_reduce", line: int = 40) -> RankStacks:
    call = StackFrame("main", "train.py", line, f"dist.{operation}(x)")
    return rank(
        number, StackFrame(operation, C10D, 3252), StackFrame("wrapper", "torch/distributed/c10d_logger.py", 8), call
    )


def sleeping(number: int) -> RankStacks:
    return rank(
        number, StackFrame("load", "train.py", 5, "time.sleep(1e6)"), StackFrame("main", "train.py", 9, "load()")
    )


def test_the_rank_that_is_not_in_the_collective_of_the_others_is_behind() -> None:
    late, text = behind([waiting(0), sleeping(1), waiting(2), waiting(3)])
    assert late == [1]
    assert text == (
        "rank 1 is behind: it is at train.py:5 in load, `time.sleep(1e6)`; ranks 0, 2 and 3 wait in all_reduce"
    )


def test_a_rank_that_waits_for_its_data_loader_names_the_line_of_the_worker() -> None:
    loop = StackFrame("<module>", "train.py", 13, "for x in loader:")
    asks = StackFrame("_next_data", "torch/utils/data/dataloader.py", 1505)
    reads = StackFrame("__getitem__", "train.py", 8, "open(pipe).read()")
    fetches = StackFrame("fetch", "torch/utils/data/_utils/fetch.py", 54)
    idle = StackFrame("_worker_loop", "torch/utils/data/_utils/worker.py", 334)
    stacks = [
        ThreadStack("main", (asks, loop)),
        ThreadStack("idle", (idle, loop)),
        ThreadStack("busy", (reads, fetches, idle, loop)),
    ]
    _, text = behind([waiting(0), RankStacks(1, tuple(stacks))])
    assert text == (
        "rank 1 is behind: it is at train.py:13 in <module>, `for x in loader:`, whose worker is at train.py:8"
        " in __getitem__, `open(pipe).read()`; rank 0 waits in all_reduce"
    )


@pytest.mark.parametrize(
    ("ranks", "named"),
    [([3], "rank 3"), ([0, 1], "ranks 0 and 1"), ([0, 1, 3], "ranks 0, 1 and 3"), ([5, 0, 1, 2], "ranks 0-2 and 5")],
)
def test_ranks_are_listed_as_one_says_it(ranks: list[int], named: str) -> None:
    assert named_ranks(ranks) == named


def test_several_ranks_at_one_place_are_one_sentence() -> None:
    late, text = behind([waiting(0, "barrier"), sleeping(1), sleeping(2), sleeping(3)])
    assert late == [1, 2, 3]
    assert text.startswith("ranks 1-3 are behind: ranks 1-3 are at train.py:5 in load, `time.sleep(1e6)`; rank 0 waits")


def test_ranks_in_different_operations_are_told_apart() -> None:
    late, text = behind([waiting(0), waiting(1), waiting(2, "barrier")])
    assert (late, text) == (
        [2],
        "the ranks wait in different operations: ranks 0 and 1 in all_reduce, rank 2 in barrier",
    )


def test_ranks_in_one_operation_at_different_lines_are_told_apart() -> None:
    late, text = behind([waiting(0), waiting(1), waiting(2, line=55)])
    assert late == [2]
    assert "all ranks wait in all_reduce, but at different lines" in text
    assert "train.py:55" in text


def test_where_all_wait_at_one_line_nobody_is_blamed() -> None:
    late, text = behind([waiting(0), waiting(1)])
    assert late == []
    assert text.endswith("no rank is behind, so look at the network between them")


def test_a_rank_in_the_backward_pass_waits_for_gradients() -> None:
    backward = rank(
        0, StackFrame("backward", "torch/autograd/__init__.py", 347), StackFrame("main", "t.py", 3, "l.backward()")
    )
    assert behind([backward, sleeping(1)])[1].endswith(
        "rank 0 waits in the backward pass, for the gradients of the others"
    )


def test_a_run_of_one_process_says_where_it_is() -> None:
    stuck = rank(0, StackFrame("wait", "threading.py", 327), StackFrame("<module>", "a.py", 4, "q.get()"))
    assert behind([stuck]) == ([], "it is at a.py:4 in <module>, `q.get()`, inside wait of threading.py")


def test_a_rank_without_a_stack_says_so() -> None:
    late, text = behind([waiting(0), rank(1, note="no Python stack was available: it is sleeping")])
    assert late == [1]
    assert "rank 1 is behind: no Python stack was available: it is sleeping; rank 0 waits in all_reduce" in text


def test_what_is_kept_is_bounded_and_the_rank_behind_comes_first(now: datetime) -> None:
    deep = tuple(StackFrame("f", "a.py", line) for line in range(40))
    many = [rank(number, *deep, *waiting(0).frames) for number in range(300)]
    hang = diagnosed([Standstill(now, 9.0, (*many, sleeping(300)))], now)
    assert hang.ranks[0].rank == 300
    assert len(hang.ranks) == 64
    assert sum(len(stack.frames) for one in hang.ranks for stack in one.stacks) <= MOST_FRAMES_KEPT
    assert load(type(hang), dump(hang)) == hang


# When a run hangs.


def said(member: Member, now: datetime, standstill: Standstill | None, **more: Any) -> Sighting:
    report = Report(member.number, member.node, Phase.RUNNING, now, 5, started_at=now, standstill=standstill)
    return Sighting(node=NodeSight(member.key, NodeState.UP), report=replace(report, **more))


def both(run: Run, now: datetime, *stands: Standstill | None, **more: Any) -> Sighting:
    first, *others = (
        said(one, now, stand, **more) for one, stand in zip(run.attempts[-1].members, stands, strict=True)
    )
    return replace(first, peers=tuple(others))


@pytest.fixture
def running(make_run: MakeRun, now: datetime) -> Run:
    run = begin(make_run(job={"nodes": 2, "retries": 1, "hang": {"after": "60s", "action": "restart"}}), now).run
    return advance(run, both(run, now, None, None), now).run


def stands(now: datetime) -> tuple[Standstill, Standstill]:
    return Standstill(now, 60.0, (waiting(0),)), Standstill(now, 70.0, (sleeping(1),))


def test_a_gang_hangs_when_every_node_stands_still(running: Run, now: datetime) -> None:
    first, second = stands(now)
    alone = noted(Decision(running), both(running, now, first, None), now)
    assert alone.run == running, "while one node works, the other may wait for it"
    hung = noted(Decision(running), both(running, now, first, second), now)
    assert [one.kind for one in hung.events] == ["hang"]
    assert hung.events[0].text.startswith("no progress for 60 s: rank 1 is behind: it is at train.py:5 in load")
    assert noted(Decision(hung.run), both(running, now, first, second), now).events == (), "it is told once"


def test_a_rank_that_has_ended_is_behind_those_that_wait_for_it(running: Run, now: datetime) -> None:
    first, second = running.attempts[-1].members
    done = said(second, now, None, phase=Phase.DONE, outcome=Outcome.SUCCEEDED, ranks=(RankEnd(1, 0),))
    waits = said(first, now, Standstill(now, 60.0, (waiting(0),)))
    hung = noted(Decision(running), replace(waits, peers=(done,)), now)
    assert [one.text for one in hung.events] == [
        "no progress for 60 s: rank 1 is behind: ended with exit code 0; rank 0 waits in all_reduce"
    ]


def test_only_a_job_that_says_so_is_restarted(running: Run, now: datetime) -> None:
    seen = both(running, now, *stands(now))
    hung = noted(Decision(running), seen, now)
    assert hung.actions == (TellAgent(hung.run),)
    assert restarts(hung.run).startswith("it hung: no progress for 60 s: rank 1 is behind")
    patient = replace(running, job=replace(running.job, hang=HangRule(after=60.0)))
    told = noted(Decision(patient), seen, now)
    assert (told.actions, restarts(told.run)) == ((), "")


def test_progress_ends_a_hang_and_the_end_of_the_script_does_not(running: Run, now: datetime) -> None:
    first, second = stands(now)
    hung = noted(Decision(running), both(running, now, first, second), now).run
    later = now + timedelta(seconds=30)
    over = noted(Decision(hung), both(hung, later, first, None), later)
    assert [(one.kind, one.text) for one in over.events] == [("hang-over", "it makes progress again, after 90 s")]
    assert restarts(over.run) == ""
    ended = noted(Decision(hung), both(hung, later, first, None, phase=Phase.DONE, outcome=Outcome.FAILED), later)
    assert ended.events == ()


def test_a_node_that_forges_hang_after_hang_is_not_told_forever(running: Run, now: datetime) -> None:
    run, told = running, 0
    for _ in range(3 * MOST_HANGS):
        for seen in (stands(now), (None, None)):
            after = noted(Decision(run), both(run, now, *seen), now)
            run, told = after.run, told + len(after.events)
    assert told == 2 * MOST_HANGS

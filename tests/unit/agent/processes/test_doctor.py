"""What counts as progress, and when the ranks of a node stand still."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.agent.processes.doctor import HangDoctor, Processes, Watched
from stoker.model.run.stacks import RankStacks, StackFrame, Standstill, ThreadStack

WAITS = StackFrame("all_reduce", "torch/distributed/distributed_c10d.py", 3)
WORKS = StackFrame("matmul", "train.py", 3, "a @ b")


class Ward:
    """A node whose ranks do what a test says, second by second."""

    def __init__(self, after_s: float = 100.0, ranks: int = 1) -> None:
        self.now, self.marks, self.rests = 1000.0, 0, False
        self.used = dict.fromkeys(range(ranks), 0.0)
        self.frames = dict.fromkeys(range(ranks), WORKS)
        self.samples: list[float] = []
        self.ended: tuple[RankStacks, ...] = ()
        self.said: list[tuple[float, Standstill | None]] = []
        watched = Watched(
            processes=lambda: {rank: [rank] for rank in self.used},
            marks=lambda: self.marks,
            at_rest=lambda: self.rests,
            take=self.take,
            ended=lambda: self.ended,
            cpu_s=lambda pids: self.used[pids[0]],
        )
        self.doctor = HangDoctor(after_s, watched, lambda one: self.said.append((self.now, one)), alone=ranks == 1)
        self.doctor.look(self.now)

    def take(self, ranks: Processes) -> tuple[RankStacks, ...]:
        self.samples.append(self.now)
        return tuple(RankStacks(rank, (ThreadStack("main thread", (self.frames[rank],)),)) for rank in ranks)

    def passes(self, seconds: int, busy: Sequence[int] = (), share: float = 1.0) -> None:
        for _ in range(seconds // 5):
            self.now += 5
            for rank in busy:
                self.used[rank] += 5 * share
            self.doctor.look(self.now)

    @property
    def stands_since(self) -> list[float]:
        return [at for at, one in self.said if one]


def test_a_quiet_node_is_reported_at_its_threshold_once_with_the_stack_of_each_rank() -> None:
    ward = Ward(ranks=2)
    ward.passes(300)
    ((at, one),) = ward.said
    assert at == 1100.0
    assert one is not None
    assert (one.quiet_s, [stack.rank for stack in one.ranks]) == (100.0, [0, 1])


def test_a_rank_that_has_ended_is_reported_with_those_that_still_run_and_is_no_progress() -> None:
    ward = Ward(ranks=2)
    del ward.used[1]
    ward.frames[0] = WAITS
    ward.ended = (RankStacks(1, note="ended with exit code 0"),)
    ward.passes(300, busy=[0])
    ((_, one),) = ward.said
    assert one is not None
    assert [(stack.rank, stack.note) for stack in one.ranks] == [(0, ""), (1, "ended with exit code 0")]


def test_output_metrics_and_checkpoints_are_progress_and_end_a_standstill() -> None:
    ward = Ward()
    ward.passes(90)
    ward.marks += 1
    ward.passes(95)
    assert ward.said == []
    ward.passes(20)
    ward.marks += 1
    ward.passes(5)
    assert [one is None for _, one in ward.said] == [False, True]


def test_a_script_that_computes_in_silence_is_not_hung_and_no_stack_is_taken() -> None:
    ward = Ward()
    ward.passes(1000, busy=[0])
    assert (ward.said, ward.samples) == ([], [])


def test_the_little_that_helper_threads_use_is_no_progress() -> None:
    ward = Ward()
    ward.passes(120, busy=[0], share=0.02)
    assert ward.stands_since == [1100.0]


def test_the_time_counts_from_the_last_cpu_time() -> None:
    ward = Ward()
    ward.passes(60, busy=[0])
    ward.passes(95)
    assert ward.said == []
    ward.passes(10)
    assert ward.stands_since == [1160.0]


def test_ranks_that_burn_cpu_time_in_a_collective_make_no_progress() -> None:
    ward = Ward(ranks=2)
    ward.frames[0] = WAITS
    ward.passes(120, busy=[0])
    assert ward.stands_since == [1100.0]
    assert len(ward.samples) <= 10, "stacks are taken now and then, not at every look"


def test_while_one_rank_computes_the_others_may_wait() -> None:
    ward = Ward(ranks=2)
    ward.frames[0] = WAITS
    ward.passes(600, busy=[0, 1])
    assert ward.said == []


def test_a_script_that_waits_for_its_eviction_is_not_hung() -> None:
    ward = Ward()
    ward.rests = True
    ward.passes(300)
    assert ward.said == []

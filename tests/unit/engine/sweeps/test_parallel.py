"""`max_parallel`: never more trials of a sweep with nodes than it says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.queue.order import UNDER_WAY
from stoker.engine.rounds import Scene, decide
from stoker.engine.sweeps.budget import SweepFacts, beyond
from stoker.model.job.job import Job
from stoker.model.job.search import Trial
from stoker.model.run.run import Run, RunState, Submission
from stoker.model.run.sweep import Sweep

NOW = datetime(2026, 3, 1, tzinfo=UTC)
JOB = Job(name="ants", run="true")


def sweep(most: int | None, id: str = "s1") -> Sweep:
    return Sweep(id, f"ants-{id}", 1, Submission("k", JOB, "c", "python"), "folder", NOW, max_parallel=most)


def run(number: int, state: RunState = RunState.QUEUED, of: str = "s1") -> Run:
    made = Run(f"{number:04}", f"ants-{number}", number, JOB, "c", "python", NOW, state=state)
    return replace(made, trial=Trial(of, number)) if of else made


@given(
    st.lists(st.tuples(st.sampled_from(list(RunState)), st.sampled_from(["s1", "s2", ""])), max_size=30),
    st.integers(1, 5),
)
def test_no_more_trials_start_than_may_run_at_the_same_time(drawn: list[tuple[RunState, str]], most: int) -> None:
    runs = [run(number, state, of) for number, (state, of) in enumerate(drawn)]
    held = beyond(runs, SweepFacts({"s1": sweep(most), "s2": sweep(None, "s2")}))
    mine = [one for one in runs if one.trial and one.trial.sweep == "s1"]
    busy = sum(one.state in UNDER_WAY for one in mine)
    waiting = [one for one in mine if one.state is RunState.QUEUED]
    start = [one for one in waiting if one.id not in held]
    assert len(start) == min(max(most - busy, 0), len(waiting))
    assert start == waiting[: len(start)]  # in the order of the matrix
    assert held <= {one.id for one in mine}  # other runs do not wait for it


def test_a_round_starts_only_the_trials_that_may() -> None:
    runs = [run(number) for number in range(1, 6)]
    scene = Scene({"local": 10}, NOW, sweeps=SweepFacts({"s1": sweep(2)}))
    started = [one.run.name for one in decide(runs, {}, scene) if one.run.state is RunState.STARTING]
    assert started == ["ants-1", "ants-2"]

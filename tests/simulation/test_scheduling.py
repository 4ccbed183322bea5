"""A simulated week of a cluster: it is well used, and nothing waits forever."""

import sys
from pathlib import Path

import pytest

from stoker.engine.queue.order import HIGH, LOW, NORMAL, STARVED_S

sys.path.insert(0, str(Path(__file__).parents[2]))  # the benchmarks are not part of what is installed

from benchmarks.scheduling import WEEK_S, lived

SHORT_RUNS, SHORT_NODES = 1_500, 50


@pytest.mark.slow
def test_every_run_starts_and_high_priorities_wait_least() -> None:
    week = lived(SHORT_NODES, SHORT_RUNS)
    assert week.unstarted == 0
    assert week.waits_s[HIGH] < week.waits_s[NORMAL] < week.waits_s[LOW]
    assert week.longest_wait_s < STARVED_S + WEEK_S / 7


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_week_of_a_thousand_nodes_is_well_used_and_starves_nobody() -> None:
    week = lived(1000, 100_000)
    assert week.unstarted == 0
    assert week.utilisation >= 0.95
    assert week.longest_wait_s < STARVED_S + WEEK_S / 7

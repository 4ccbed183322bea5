"""A deadline on machines of the twin: spot while it can still be met, on-demand when it no longer can."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest
from azuretwin import BOTH_WEATHERS, TRAIN, Cloud, azure_user, reaches, right_end, served, set_up, weather
from shell import Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(800)]

STEP_S = 0.2
# There are four minutes to find the first machine in, however hostile the weather is, before only on-demand would do.
SUPPOSED, DEADLINE = "4m", "28m"
# As many steps as it says there are. At this pace they take 26.5 minutes: what is left is too little for an eviction,
# and too little to go back to spot when a change over has turned out to be quick.
SLOW = 7700
# Reports its progress, and exits on SIGTERM.
SCRIPT = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n" + textwrap.dedent(TRAIN).replace(
    '"loss": 1 / state["step"]', f'"loss": 1 / state["step"], "progress": state["step"] / {SLOW}'
)


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("deadline"), *weather(request)) as (shell, cloud):
        set_up(shell, cloud, regions=["eastus"])
        shell.stoker("server", "stop")
        yield shell, cloud


def test_a_run_that_turns_out_slow_moves_to_on_demand_before_it_is_too_late(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    shell.write("train.py", SCRIPT)
    steps = 700 if cloud.hostile() else 250  # it is still working when the other machine is ready
    env = {"STEPS": str(steps), "STEP_S": str(STEP_S)}
    shell.job("python3 train.py", on="azure", spot=True, env=env, deadline=DEADLINE, time_limit=SUPPOSED)
    shell.stoker("run", "--detach", "--name", "late")
    reaches(shell, "late", steps // 2)
    facts, why = right_end(shell, cloud, "late", steps), shell.stoker("explain", "late").stdout
    assert [offer["spot"] for offer in served(facts, "offer")] == [True, False], why
    assert "too little time left for another eviction" in why

"""The budget limit compared with the cloud's own bill: runs with small budgets on the twin, with real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import textwrap
import time
from collections.abc import Iterator
from decimal import Decimal

import pytest
from azuretwin import (
    TRAIN,
    Cloud,
    azure_user,
    in_both_weathers_at_length,
    reaches,
    right_end,
    served,
    set_up,
    weather,
)
from shell import Shell

from stoker.model.cause import Cause

pytestmark = [pytest.mark.timeout(600)]

SIZE, REGION = "Standard_D2s_v5", "eastus"
PRICE = 9.0  # an hour: a cent lasts four seconds
READY_S, RELEASE_S = 4.0, 8.0  # as the twin does it, on a busy computer
STEPS = 300  # of 0.1 s: more than the smallest budget lasts
RUNS, AT_ONCE = 50, 12  # of the long form


@pytest.fixture(scope="module")
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("budget"), *weather(request)) as (shell, cloud):
        cloud.ask("price", size=SIZE, region=REGION, usd_per_hour=PRICE)
        longer = 4 if cloud.hostile() else 1  # everything takes so much longer there
        takes = {"ready_s": longer * READY_S, "release_s": longer * RELEASE_S}
        set_up(shell, cloud, regions=[REGION], sizes=[SIZE], **takes, disk_gb=32)
        shell.stoker("server", "stop")
        yield shell, cloud


def write_job(shell: Shell, budget: str, steps: int = STEPS, *, heeds: bool = False) -> None:
    """`heeds`: the script exits on SIGTERM, like one that saves."""
    heeding = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
    shell.write("train.py", (heeding if heeds else "") + textwrap.dedent(TRAIN))
    more = {"budget": budget} if budget else {}
    shell.job("python3 train.py", on="azure", spot=True, env={"STEPS": str(steps), "STEP_S": "0.1"}, **more)


def begin(shell: Shell, name: str, budget: str, code: int = 0, steps: int = STEPS) -> str:
    write_job(shell, budget, steps)
    return shell.stoker("run", "--detach", "--name", name, code=code).stderr


def billed(cloud: Cloud) -> Decimal:
    return Decimal(str(cloud.ask("bill")["usd"]))


def spent(shell: Shell, run: str) -> Decimal:
    return Decimal(json.loads(shell.stoker("budget", run, "--json").stdout)["budget"]["spent_usd"])


def meter_stops(shell: Shell, run: str) -> Decimal:
    shell.wait_for(lambda: all(one["until"] for one in shell.facts(run)["spells"]), "the last machine to be seen gone")
    return spent(shell, run)


@pytest.mark.heavy
@in_both_weathers_at_length
def test_with_the_server_killed_a_run_stops_before_its_budget_is_spent_and_goes_on_to_the_same_bits(
    user: tuple[Shell, Cloud],
) -> None:
    shell, cloud = user
    budget, steps = ("0.24", 3 * STEPS) if cloud.hostile() else ("0.08", STEPS)
    begin(shell, "small", budget, steps=steps)
    shell.wait_for(lambda: shell.facts("small")["state"] == "running", "it to run", 120)
    server = json.loads((shell.home / "server.json").read_text())
    os.kill(server["pid"], signal.SIGKILL)
    shell.wait_for(cloud.empty, "the machine to remove itself", 120)
    assert Decimal("0.03") < billed(cloud) <= Decimal(budget), "with nobody to tell it"

    shell.stoker("budget", "small", "1")
    facts = right_end(shell, cloud, "small", steps)
    assert served(facts, "outcome") == ["budget-reached", "succeeded"]
    assert billed(cloud) <= meter_stops(shell, "small") <= Decimal(1)


@pytest.mark.slow
@in_both_weathers_at_length
def test_evicted_and_restored_while_nobody_is_there_a_run_still_stops_before_its_budget_is_spent(
    user: tuple[Shell, Cloud],
) -> None:
    """The restored machine counts what the first one has cost."""
    shell, cloud = user
    cloud.ask("weather", restore_s=2)
    budget, steps = ("0.40", 5 * STEPS) if cloud.hostile() else ("0.14", 2 * STEPS)
    begin(shell, "alone", budget, steps=steps)
    reaches(shell, "alone", 10)
    os.kill(json.loads((shell.home / "server.json").read_text())["pid"], signal.SIGKILL)
    (before,) = cloud.running()
    cloud.ask("evict", vm=before, notice_s=0)
    shell.wait_for(lambda: set(cloud.running()) - {before}, "another machine in its place", 90)
    shell.wait_for(cloud.empty, "the machine to remove itself", 180)
    bill = bill_of(cloud, shell.facts("alone")["id"])  # this starts the next server
    assert Decimal("0.03") < bill <= Decimal(budget), "with nobody to tell it"
    shell.wait_for(lambda: shell.facts("alone")["state"] == "paused", "it to be paused", 60)
    assert bill <= meter_stops(shell, "alone") <= Decimal(budget)

    shell.stoker("budget", "alone", "2")
    facts = right_end(shell, cloud, "alone", steps)
    assert served(facts, "outcome") == ["budget-reached", "succeeded"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_runs_with_random_budgets_are_never_a_cent_over_and_leave_little_unspent(
    user: tuple[Shell, Cloud],
) -> None:
    """A few at a time, half of them with a script that exits on SIGTERM. The cloud's bill counts."""
    shell, cloud = user
    dice = random.Random(2026)
    budgets = {f"random-{number}": Decimal(dice.randint(25, 100)) / 100 for number in range(RUNS)}
    waiting, going, shares, unspent = list(budgets), set[str](), list[Decimal](), list[Decimal]()
    while waiting or going:
        while waiting and len(going) < AT_ONCE:
            name = waiting.pop()
            write_job(shell, str(budgets[name]), 10**6, heeds=dice.random() < 0.5)
            shell.stoker("run", "--detach", "--name", name)
            going.add(name)
        for name in sorted(going):
            facts = shell.facts(name)
            if facts["state"] != "paused" or not all(one["until"] for one in facts["spells"]):
                continue
            going.discard(name)
            bill, metered = bill_of(cloud, facts["id"]), spent(shell, name)
            print(f"{name}: budget {budgets[name]}, metered {metered:.6f}, billed {bill:.6f}")  # noqa: T201  # the figures
            assert bill <= metered <= budgets[name], name
            unspent.append(budgets[name] - metered)
            shares.append(unspent[-1] / budgets[name])
            shell.stoker("cancel", name, "--yes")
        time.sleep(1)
    print(f"mean unspent {sum(shares) / RUNS:.1%}, ${sum(unspent) / RUNS:.4f}")  # noqa: T201
    assert sum(shares) / RUNS < Decimal("0.05") or sum(unspent) / RUNS < Decimal("0.01")


def bill_of(cloud: Cloud, run_id: str) -> Decimal:
    """Everything in the groups of its nodes."""
    charges = cloud.ask("bill")["charges"]
    return sum((Decimal(str(one["usd"])) for one in charges if f"{run_id}-" in one["resource"]), Decimal(0))


def test_a_budget_below_the_cheapest_start_is_refused_with_the_least_that_would_do(user: tuple[Shell, Cloud]) -> None:
    shell, _ = user
    said = begin(shell, "tiny", "0.05", code=2)
    assert "stoker.yaml:1:" in said
    assert (
        f"budget: found `$0.05`, expected at least $0.07: the shortest run on the cheapest offer, a {SIZE} in" in said
    )


@pytest.mark.heavy
def test_attached_to_a_run_that_is_paused_the_command_ends_with_a_code_of_its_own(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    shell.stoker("admin", "limit", "--day", "0.01")
    write_job(shell, "")
    attached = shell.start("run", "--name", "held")
    shell.wait_for(lambda: shell.stoker("show", "held", code=None).returncode == 0, "it to be submitted")
    cause = shell.wait_for(lambda: shell.facts("held")["cause"], "the limit to hold it")
    assert cause == Cause.UNAFFORDABLE and "$0.01" in shell.facts("held")["reason"]
    for said in (shell.facts("held")["alone"], json.loads(shell.stoker("plan", "--json").stdout)["plan"]["alone"]):
        assert "at most 5 d or what the limit of everybody together of $0.01 a day leaves; if" in said
    assert shell.facts("held")["state"] == "queued", "it goes on by itself when a new day begins"
    shell.stoker("admin", "limit", "--day", "none")
    shell.wait_for(lambda: shell.facts("held")["attempts"], "it to start")
    shell.stoker("budget", "held", "0.01")
    _, said = attached.communicate(timeout=120)
    assert attached.returncode == 75, said
    assert "$0.01" in said and shell.facts("held")["cause"] == Cause.BUDGET_SPENT
    assert "hint: stoker budget held 0.02" in said
    assert shell.refused("resume", "held", "--set", "retries=2")["cause"] == Cause.RUN_PAUSED
    assert shell.stoker("resume", "held", "--detach", "--set", "budget=1").stdout == "held\n", "the very run"
    shell.wait_for(lambda: shell.facts("held")["state"] == "running", "it to continue", 120)
    shell.stoker("cancel", "held", "--yes")
    shell.wait_for(cloud.empty, "nothing to be left", 60)

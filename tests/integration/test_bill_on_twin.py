"""The receipt compared with the cloud's own bill: an evicted spot run on the twin, with real processes and prices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, STEP_S, TRAIN, Cloud, azure_user, reaches, right_end, weather
from shell import Shell

from stoker.model.cause import Cause
from stoker.providers.azure.market.prices import PriceList
from stoker.providers.azure.market.refresh import refresh

pytestmark = [pytest.mark.timeout(600), pytest.mark.heavy]  # one evicted run, which all of them look at

STEPS = 40
# The first attempt does not end by itself, however slow the eviction is.
WAITING = TRAIN.replace(
    'time.sleep(float(os.environ["STEP_S"]))',
    'time.sleep(600 if state["step"] == 15 and os.environ["STOKER_ATTEMPT"] == "1" else float(os.environ["STEP_S"]))',
)
SIZE, PRICE = (
    "Standard_D2s_v5",
    1.2,
)  # an hour: a cent lasts 30 s, so that both sides of the comparison are worth something
SAVING = """
    import time
    from stoker.checkpoint import Checkpoint

    class Counter:
        def __init__(self): self.done = 0
        def state_dict(self): return {"done": self.done}
        def load_state_dict(self, state): self.done = state["done"]

    counter = Counter()
    checkpoint = Checkpoint(counter=counter, every=5)
    for _ in checkpoint.range(20):
        time.sleep(0.03)
        counter.done += 1
        checkpoint.step(done=counter.done)
"""
Story = tuple[Shell, Cloud, dict[str, Any]]


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def evicted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """A user, the cloud, and the receipt of a run whose first machine was evicted without notice."""
    with azure_user(tmp_path_factory.mktemp("bill"), *weather(request)) as (shell, cloud):
        cloud.ask("weather", allocation_failures=0.0)  # the first attempt is the one that is evicted
        for region in ("eastus", "westus2"):
            cloud.ask("price", size=SIZE, region=region, usd_per_hour=PRICE)
        shell.write("train.py", WAITING)
        steps = {"STEPS": str(STEPS), "STEP_S": str(STEP_S)}
        shell.job("python3 train.py", on="azure", spot=True, size=SIZE, env=steps)
        shell.stoker("run", "--detach", "--name", "paid")
        reaches(shell, "paid", 15)
        shell.wait_for(lambda: kept_step(shell, "paid") >= 5, "a checkpoint to resume from")
        (vm,) = cloud.running()
        cloud.ask("evict", vm=vm, notice_s=0)
        right_end(shell, cloud, "paid", STEPS)
        yield shell, cloud, receipt(shell, "paid")


def kept_step(shell: Shell, run: str) -> float:
    """The step of the newest checkpoint in the store, as the agent has reported it."""
    effort = shell.facts(run)["attempts"][-1]["effort"] or {}
    return float((effort.get("kept") or {}).get("step") or 0)


def receipt(shell: Shell, run: str) -> dict[str, Any]:
    """Once every machine of it was seen gone."""

    def told() -> dict[str, Any]:
        made: dict[str, Any] = json.loads(shell.stoker("receipt", run, "--json").stdout)
        return made if made["receipt"]["final"] else {}

    made: dict[str, Any] = shell.wait_for(told, "the last of its machines to be seen gone", 60)
    return made


def total(parts: dict[str, Any], what: str) -> Decimal:
    return sum((Decimal(share[what]) for share in parts.values()), Decimal(0))


def test_the_receipt_is_the_clouds_bill_to_the_cent_and_never_less(evicted: Story) -> None:
    _, cloud, made = evicted
    bill = Decimal(str(cloud.ask("bill")["usd"]))
    assert bill > Decimal("0.004"), "otherwise there is nothing to compare"
    assert bill <= Decimal(made["usd"]) < bill + Decimal("0.01")
    parts, stays = made["receipt"]["parts"], made["receipt"]["stays"]
    assert total(parts, "usd") == Decimal(made["usd"])
    assert total(parts, "seconds") == Decimal(made["seconds"])
    assert len(stays) == 2
    assert sum((total(stay["parts"], "usd") for stay in stays), Decimal(0)) == Decimal(made["usd"])
    assert made["receipt"]["left"] == []


def test_the_receipt_knows_the_work_the_wait_and_what_was_done_twice(evicted: Story) -> None:
    made = evicted[2]["receipt"]
    seconds = {part: float(share["seconds"]) for part, share in made["parts"].items()}
    assert seconds["useful"] >= STEP_S * STEPS * 0.9
    assert seconds["provisioning"] > 0.5
    assert seconds["set-up"] > 0
    (taken,) = made["taken"]
    assert (taken["attempt"], taken["notice_s"]) == (1, None)
    assert taken["step"] == 15
    assert taken["safe_step"] <= 15
    assert seconds["redone"] > 0
    assert Decimal(made["undisturbed_usd"]) > 0
    assert made["notes"] == []


def test_the_run_is_explained_in_sentences(evicted: Story) -> None:
    told = evicted[0].stoker("explain", "paid").stdout
    assert re.search(r"the script started on a spot Standard_\w+ in \w+, \d.* s after the request", told)
    assert re.search(r"(its node was lost|it was evicted without notice).*; step \d+( of \d+)? was", told), told
    assert re.search(r"it resumed from step \d+, on a new node in \w+ \d.* s later", told)
    assert re.search(r"it cost \$0\.\d+, \d+ % of it for useful work", told)


def test_the_costs_of_everybody_are_those_of_the_receipt(evicted: Story) -> None:
    shell, _, made = evicted
    for words in (["--by", "day"], ["job", "--by", "run"]):
        costs = json.loads(shell.stoker("cost", *words, "--json").stdout)
        assert Decimal(costs["total"]["usd"]) == Decimal(made["usd"])
        assert sum((Decimal(row["usd"]) for row in costs["rows"]), Decimal(0)) == Decimal(made["usd"])
    assert shell.refused("cost", "nobody")["cause"] == Cause.NO_SUCH_EXPERIMENT


def test_a_plan_expects_what_the_run_has_shown(evicted: Story) -> None:
    shell, _, _ = evicted
    made = json.loads(shell.stoker("plan", "--currency", "eur", "--set", "budget=$5", "--json").stdout)["forecast"]
    assert made["past"]["runs"] == 1
    assert made["choice"]["offer"]["size"] == SIZE
    assert made["choice"]["seconds"] > STEP_S * STEPS * 0.9
    assert Decimal(made["choice"]["usd"]) < Decimal(1)
    assert made["choice"]["offer"]["currency"] == "EUR"
    assert Decimal(made["choice"]["offer"]["quoted"]) > 0
    text = shell.stoker("plan", "--set", "spot.max_price=0.50").stdout
    assert "none: " in text
    assert "$1.23 an hour is more than `spot.max_price`" in text
    assert "fetched" in text
    assert "`XYZ`" in shell.stoker("plan", "--currency", "XYZ", code=2).stderr


def test_the_page_and_the_terminal_say_the_same(evicted: Story, tmp_path: Path) -> None:
    shell, _, _ = evicted
    text = shell.stoker("receipt", "paid").stdout
    (shown,) = re.findall(r"whole +[\d:]+ +100 % +(\$[\d.]+)", text)
    file = tmp_path / "receipt.html"
    shell.stoker("receipt", "paid", "--html", str(file))
    page = file.read_text()
    assert page.count(shown) >= 2
    assert "still running: nothing, $0.00/h" in page
    assert shell.refused("receipt", "paid", "--html", str(tmp_path))["cause"] == Cause.FILE_UNWRITABLE


def test_the_snapshot_of_prices_can_be_read_from_this_list(evicted: Story, tmp_path: Path) -> None:
    told, out = evicted[1].told, tmp_path / "snapshot.json"
    prices = PriceList(f"{told['url']}/api/retail/prices", told["authority"])
    assert refresh(["eastus", "westeurope"], prices, out) > 60
    made = json.loads(out.read_text())
    assert made["regions"]["westeurope"]["machines"]["standard_d4s_v5"] == "0.2304"
    assert made["regions"]["eastus"]["disks"]["P10"] == "19.71"


def test_a_run_on_a_computer_of_ones_own_has_its_minutes_and_no_bill(evicted: Story) -> None:
    shell, _, _ = evicted
    shell.write("quick.py", SAVING)
    shell.job("python3 quick.py", on="local")
    shell.stoker("run", "--name", "free")
    made = json.loads(shell.stoker("receipt", "free", "--json").stdout)
    assert Decimal(made["usd"]) == 0
    assert float(made["receipt"]["parts"]["useful"]["seconds"]) > 0.4
    effort = shell.facts("free")["attempts"][0]["effort"]
    assert 0 < effort["blocked_s"] < effort["phases"]["running"], "the script says how long its saves held it"
    assert (effort["step"], effort["began_from"]) == (20, None)
    assert "$" not in shell.stoker("explain", "free").stdout

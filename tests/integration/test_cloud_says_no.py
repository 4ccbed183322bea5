"""What a cloud refuses, and what a laptop does to a run: each with a message, and no machine is forgotten."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from azuretwin import BOTH_WEATHERS, TRAIN, Cloud, azure_user, begin, reaches, right_end, served, set_up, weather
from shell import Shell

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

# Every Python that is started with it believes that it is another time; steady clocks are as they were.
WRONG_CLOCK = """
import datetime, time
right = time.time
time.time = lambda: right() + {wrong_s}
class Wrong(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
    @classmethod
    def utcnow(cls):
        return cls.now(datetime.UTC).replace(tzinfo=None)
datetime.datetime = Wrong
"""
OWNER, READER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635", "acdd72a7-3385-48ef-bd42-f606fba81ae7"


class Shared(Cloud):
    """A subscription in which people have roles, which stay: it is empty when it has no groups."""

    def empty(self) -> bool:
        return not self.arm("GET", "/resourcegroups")["value"]


@pytest.fixture(scope="module", params=BOTH_WEATHERS)
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("no"), *weather(request)) as (shell, cloud):
        yield shell, Shared(cloud.told)


def account(shell: Shell, cloud: Cloud, **more: Any) -> None:
    set_up(shell, cloud, **more)
    shell.stoker("server", "stop", code=None)  # the next one reads it


def colleague(shell: Shell, cloud: Cloud, name: str, role: str = "", secret: str = "s3cret-s3cret") -> dict[str, Any]:
    """Somebody with a login of their own, and a role in the subscription: fields of an account."""
    made = cloud.ask("principal", name=name, secret=secret)
    if role:
        given = f"/providers/Microsoft.Authorization/roleDefinitions/{role}"
        body = {"properties": {"principalId": made["object_id"], "roleDefinitionId": given}}
        place = f"/providers/Microsoft.Authorization/roleAssignments/{made['object_id']}"
        cloud.arm("PUT", place, body, "2022-04-01")
        time.sleep(6 if cloud.hostile() else 0)  # until the role is known everywhere
    file = shell.home / f"{name}.secret"
    file.write_text(secret)
    file.chmod(0o600)
    return {"client": made["client_id"], "secret_file": str(file)}


def test_missing_rights_end_the_run_at_once_with_the_administrators_command(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud, **colleague(shell, cloud, "nobody"))
    shell.write("train.py", "print('here')")
    shell.job("python3 train.py", on="azure")
    assert "az role assignment create --role Contributor" in shell.stoker("run", "--name", "none", code=125).stderr
    account(shell, cloud, **colleague(shell, cloud, "reader", READER))
    shell.stoker("run", "--name", "reader", code=125)
    facts = shell.facts("reader")
    assert (facts["state"], len(facts["attempts"])) == ("failed", 1)
    assert facts["cause"] == "not-allowed"
    assert "Microsoft.Resources/subscriptions/resourceGroups/write" in facts["reason"]
    assert f"--scope /subscriptions/{cloud.told['subscription']} (" in facts["hint"]
    assert cloud.empty()


def test_a_region_that_azure_closes_to_the_subscription_is_left_for_the_next_one(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud)
    shell.write("train.py", TRAIN)
    shell.job("python3 train.py", on="azure", spot=True, env={"STEPS": "10", "STEP_S": "0.2"})
    forecast = json.loads(shell.stoker("plan", "--json").stdout)["forecast"]
    region = forecast["offers"][0]["offer"]["place"]
    cloud.ask("restrict", region=region)
    try:
        shell.stoker("run", "--detach", "--name", "moved")
        facts = right_end(shell, cloud, "moved", steps=10)
    finally:
        cloud.ask("restrict", region=region, on=False)
    refused = [one for one in facts["attempts"] if one["trouble"] == "provider-failed"]
    assert [one["offer"]["place"] for one in refused] == [region] * len(refused)
    assert 0 < len(refused) <= 2, "one of another size, in case that was the reason"
    assert all("this subscription may not use the region" in one["message"] for one in refused)
    assert {facts["attempts"][-1]["offer"]["place"]} == {"eastus", "westus2"} - {region}


def test_a_login_that_expires_costs_no_run_its_machine_and_is_taken_up_again(user: tuple[Shell, Cloud]) -> None:
    """Its lease is renewed through the store, which has nothing to do with the login."""
    shell, cloud = user
    anna = colleague(shell, cloud, "anna", OWNER)
    account(shell, cloud, lease_s=12.0, **anna)
    begin(shell, "expiring", steps=300)
    reaches(shell, "expiring", 3)
    shell.wait_for(lambda: shell.facts("expiring")["state"] == "running", "the server to know")
    cloud.ask("principal", name="anna", secret="rotated-rotated")
    cloud.ask("logout", everybody=True)
    shell.wait_for(lambda: "the secret of the login is wrong" in shell.facts("expiring")["reason"], "the reason")
    assert shell.facts("expiring")["state"] == "running"
    until = time.monotonic() + 15  # longer than the lease
    shell.wait_for(lambda: time.monotonic() > until, "the lease to be over", 30)
    assert (shell.facts("expiring")["state"], len(cloud.running())) == ("running", 1)
    Path(anna["secret_file"]).write_text("rotated-rotated")
    facts = right_end(shell, cloud, "expiring", steps=300)
    assert len(served(facts)) == 1
    assert (facts["reason"], facts["hint"]) == ("", "")


def test_a_locked_group_is_switched_off_told_of_and_removed_when_the_lock_is_gone(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud)
    begin(shell, "locked")  # long enough that the lock is there before the end
    reaches(shell, "locked", 2)
    (machine,) = cloud.machines()
    group = machine["vm"].split("/resourceGroups/")[1].split("/")[0]
    lock = f"/resourceGroups/{group}/providers/Microsoft.Authorization/locks/keep"
    cloud.arm("PUT", lock, {"properties": {"level": "CanNotDelete"}}, "2020-05-01")
    shell.wait_for(lambda: shell.facts("locked")["state"] == "succeeded", "the end", 90)
    shell.wait_for(lambda: cloud.machines()[0]["power"] == "deallocated", "the machine to be off", 30)
    cleaned = shell.stoker("cleanup", "--yes", code=1)
    assert "az lock delete" in cleaned.stderr
    cloud.arm("DELETE", lock, version="2020-05-01")
    shell.stoker("cleanup", "--yes")
    shell.wait_for(cloud.empty, "nothing to be left")


def test_a_laptop_that_sleeps_for_longer_than_the_lease_finds_its_run_and_continues(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud, lease_s=10.0)
    begin(shell, "sleeping")
    reaches(shell, "sleeping", 5)
    server = shell.server_pid()
    os.kill(server, signal.SIGSTOP)
    try:
        shell.wait_for(cloud.empty, "the machine to have removed itself", 90)
    finally:
        os.kill(server, signal.SIGCONT)
    facts = right_end(shell, cloud, "sleeping")
    assert len(served(facts)) == 2, shell.stoker("explain", "sleeping").stdout


@pytest.mark.parametrize("wrong_s", [600, -600])
def test_a_clock_that_is_wrong_by_ten_minutes_changes_nothing(
    user: tuple[Shell, Cloud], wrong_s: int, tmp_path: Path
) -> None:
    """The laptop's; the cloud, its machines and the store have the right time."""
    shell, cloud = user
    account(shell, cloud, lease_s=20.0)
    (tmp_path / "sitecustomize.py").write_text(WRONG_CLOCK.format(wrong_s=wrong_s))
    shell.environ["PYTHONPATH"] = str(tmp_path)
    try:
        name = "early" if wrong_s < 0 else "late"
        begin(shell, name, steps=20)
        submitted = datetime.fromisoformat(shell.facts(name)["submitted_at"])
        assert abs((submitted - datetime.now(UTC)).total_seconds() - wrong_s) < 120, "the clock is wrong indeed"
        facts = right_end(shell, cloud, name, steps=20)
        assert len(served(facts)) == 1
    finally:
        shell.stoker("server", "stop", code=None)
        del shell.environ["PYTHONPATH"]

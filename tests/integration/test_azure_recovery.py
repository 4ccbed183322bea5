"""What becomes of machines that lose their server, are switched off, or restart: on the twin, with real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pytest
from azuretwin import (
    Cloud,
    azure_user,
    begin,
    in_both_weathers,
    in_both_weathers_at_length,
    reaches,
    right_end,
    served,
    set_up,
    timeline,
    weather,
)
from shell import Shell

from stoker.model.cause import Cause

pytestmark = [pytest.mark.timeout(600)]

SHORT, LONG = 60, 150  # steps; the longer takes twice as long as a lease


@pytest.fixture(scope="module")
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("recovery"), *weather(request)) as (shell, cloud):
        yield shell, cloud


def account(shell: Shell, cloud: Cloud, **more: object) -> None:
    shell.stoker("server", "stop", code=None)
    set_up(shell, cloud, **more)


@pytest.mark.heavy
@in_both_weathers
def test_a_machine_whose_server_is_gone_saves_and_removes_itself_and_the_next_server_continues(
    user: tuple[Shell, Cloud],
) -> None:
    """With nothing but its managed identity: nothing else sends requests to the twin after the server was killed."""
    shell, cloud = user
    account(shell, cloud, lease_s=8)
    begin(shell, "alone", LONG, 0.15)
    reaches(shell, "alone", 5)
    shell.kill_server()
    asked = len(cloud.ask("requests"))
    shell.wait_for(cloud.empty, "the machine to remove itself", 120)
    assert {one["method"] for one in cloud.ask("requests")[asked:] if one["method"] != "GET"} == {"DELETE"}
    facts = right_end(shell, cloud, "alone", LONG)
    assert served(facts) == ["evicted", "ended"]
    assert served(facts, "cause")[0] == Cause.LEASE_OVER
    assert not any(json.loads(shell.stoker("cleanup", "--json").stdout).values())


@pytest.mark.heavy
@in_both_weathers
def test_evicted_without_a_server_azure_restores_the_machine_and_the_run_ends_by_itself(
    user: tuple[Shell, Cloud],
) -> None:
    """Once with notice and once without; only the machines send requests to the twin."""
    shell, cloud = user
    account(shell, cloud, idle_s=15)
    cloud.ask("weather", restore_s=1.0)
    begin(shell, "closed", LONG, 0.2)
    reaches(shell, "closed", 5)
    shell.kill_server()
    asked = len(cloud.ask("requests"))
    for notice_s in (5, 0):
        before = shell.wait_for(cloud.running, "a machine that runs", 60)
        cloud.ask("evict", vm=before[0], notice_s=notice_s)
        shell.wait_for(partial(_another, cloud, before), "another machine in its place", 90)
    shell.wait_for(cloud.empty, "the run to end and its machine to remove itself", 180)
    written = {one["method"] for one in cloud.ask("requests")[asked:] if one["method"] != "GET"}
    assert written == {"DELETE"}, "Azure made the machines: none of them asked for one"
    facts = right_end(shell, cloud, "closed", LONG)
    assert served(facts) == ["ended"]
    assert "machine-restored" in timeline(shell, "closed")


@pytest.fixture
def roomy(user: tuple[Shell, Cloud]) -> Iterator[None]:
    """With capacity, however hostile Azure is otherwise."""
    cloud = user[1]
    before = cloud.ask("weather")["allocation_failures"]
    cloud.ask("weather", allocation_failures=0.0)
    yield
    cloud.ask("weather", allocation_failures=before)


@pytest.mark.heavy
@in_both_weathers_at_length
@pytest.mark.usefixtures("roomy")
def test_a_machine_that_was_switched_off_is_switched_on_again_and_keeps_its_disk(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud, eviction="Deallocate")
    begin(shell, "again", SHORT, 0.15, rest_at=5)
    reaches(shell, "again", 5)
    first = shell.facts("again")["attempts"][-1]
    (before,) = cloud.machines()
    cloud.ask("evict", vm=before["vm"], notice_s=0)
    shell.wait_for(lambda: shell.facts("again")["attempts"][-1]["key"] != first["key"], "the next attempt")
    assert shell.facts("again")["attempts"][-1]["offer"]["again"] == first["key"]
    reaches(shell, "again", 20)
    (after,) = cloud.machines()
    assert (after["name"], after["boots"]) == (before["name"], 2)
    assert served(right_end(shell, cloud, "again", SHORT)) == ["evicted", "ended"]


@pytest.mark.slow  # the contract of the provider and the engine's tests have it in short
@in_both_weathers
@pytest.mark.usefixtures("roomy")
def test_a_machine_that_cannot_be_switched_on_again_is_replaced_and_removed(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    account(shell, cloud, eviction="Deallocate")
    begin(shell, "elsewhere", SHORT, 0.15, rest_at=5)
    reaches(shell, "elsewhere", 5)
    cloud.ask("fault", kind="allocation", times=1)
    cloud.ask("evict", vm=cloud.running()[0], notice_s=0)
    facts = right_end(shell, cloud, "elsewhere", SHORT)
    assert [one["trouble"] for one in facts["attempts"]].count("no-capacity") == 1
    assert served(facts) == ["evicted", "ended"]
    assert facts["attempts"][-1]["offer"]["again"] == ""


@pytest.mark.heavy
@in_both_weathers_at_length
def test_after_a_restart_the_run_resumes_on_the_same_machine(user: tuple[Shell, Cloud]) -> None:
    """Also where Azure is slow to record whose machine it is now, and the next attempt reports before that."""
    shell, cloud = user
    account(shell, cloud)
    begin(shell, "restart", SHORT, 0.15, rest_at=5)
    reaches(shell, "restart", 5)
    (before,) = cloud.machines()
    cloud.ask("fault", kind="throttle", method="PATCH", path="Microsoft.Resources/tags", seconds=15)
    cloud.ask("event", vm=before["vm"], type="Reboot", notice_s=5)
    shell.wait_for(lambda: len(served(shell.facts("restart"))) == 2, "the next attempt", 120)
    reaches(shell, "restart", 30)
    (after,) = cloud.machines()
    assert (after["name"], after["boots"]) == (before["name"], 2)
    assert served(right_end(shell, cloud, "restart", SHORT)) == ["evicted", "ended"]
    assert "ready" in timeline(shell, "restart")


def _another(cloud: Cloud, before: list[str]) -> bool:
    return bool(set(cloud.running()) - set(before))

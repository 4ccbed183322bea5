"""From nothing to results to nothing: jobs on spot machines of the twin, with real processes and the official SDKs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from azuretwin import (
    STEPS,
    Cloud,
    azure_user,
    begin,
    colleague,
    in_both_weathers,
    in_both_weathers_at_length,
    reaches,
    right_end,
    served,
    timeline,
    weather,
)
from shell import Shell

pytestmark = [pytest.mark.timeout(600)]

FOREVER = 100_000  # steps: until it is cancelled


@pytest.fixture(scope="module")
def user(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud]]:
    with azure_user(tmp_path_factory.mktemp("on-twin"), *weather(request)) as (shell, cloud):
        yield shell, cloud


@pytest.mark.heavy
@in_both_weathers
def test_evicted_with_notice_it_resumes_elsewhere_and_nothing_is_left(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    steps = 3 * STEPS // 2 if cloud.hostile() else STEPS  # it is at work when the notice comes, however late that is
    begin(shell, "noticed", steps)
    reaches(shell, "noticed", 5)
    (vm,) = cloud.running()
    cloud.ask("evict", vm=vm, notice_s=8)
    facts = right_end(shell, cloud, "noticed", steps)
    assert served(facts) == ["evicted", "ended"]
    happened = timeline(shell, "noticed")
    assert happened.index("asked-ahead") < happened.index("evicted"), "the next machine was asked for during the notice"


@pytest.mark.heavy
@in_both_weathers
def test_evicted_without_notice_it_resumes_from_its_last_checkpoint(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "sudden")
    reaches(shell, "sudden", 5)
    (vm,) = cloud.running()
    cloud.ask("evict", vm=vm, notice_s=0)
    facts = right_end(shell, cloud, "sudden")
    assert len(served(facts)) == 2


@pytest.mark.slow
@in_both_weathers
def test_a_server_killed_meanwhile_finds_its_machine_again(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "orphan")
    reaches(shell, "orphan", 3)
    for _ in range(3):
        shell.kill_server()
        shell.stoker("ps")
        time.sleep(0.5)
    facts = right_end(shell, cloud, "orphan")
    assert len(served(facts)) == 1


@in_both_weathers
def test_a_cancelled_run_leaves_nothing(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    begin(shell, "cancelled")
    reaches(shell, "cancelled", 2)
    (used,) = json.loads(shell.stoker("cleanup", "--json").stdout)["used"]
    assert (used["run_name"], used["kept_until"]) == ("cancelled", None)
    assert float(used["usd_per_hour"]) > 0 and float(used["spent_usd"]) > 0, "what is at work is shown with its cost"
    shell.stoker("cancel", "cancelled")
    shell.wait_for(lambda: shell.facts("cancelled")["state"] == "cancelled", "the end")
    shell.wait_for(lambda: cloud.ask("status")["resources"] == 0, "nothing to be left")
    left = json.loads(shell.stoker("cleanup", "--json").stdout)
    assert not any(left.values())


@pytest.mark.heavy
@in_both_weathers_at_length
def test_a_size_that_is_unavailable_is_requested_elsewhere(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    cloud.ask("fault", kind="allocation", times=1)
    begin(shell, "elsewhere")
    facts = right_end(shell, cloud, "elsewhere")
    troubles = [one["trouble"] for one in facts["attempts"]]
    refused = troubles.index("no-capacity")  # a hostile Azure may not know the first machine's role before
    assert len(served(facts)) == 1
    assert facts["attempts"][refused + 1]["offer"]["place"] != facts["attempts"][refused]["offer"]["place"]


@in_both_weathers_at_length
def test_what_a_crash_has_left_is_found_and_removed(user: tuple[Shell, Cloud]) -> None:
    """A group with our tags that no run claims, as a crash between two calls leaves it."""
    shell, cloud = user
    shell.stoker("ps")
    own = (shell.home / "server.id").read_text().strip()
    make_group(cloud, "lost-1", {"stoker-server": own})
    assert "lost-1" in shell.stoker("cleanup", "--yes").stdout
    assert json.loads(shell.stoker("cleanup", "--json").stdout)["left"] == []


@in_both_weathers_at_length
def test_what_another_server_has_is_its_own_until_its_lease_is_over(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    make_group(cloud, "busy-1", {"stoker-server": "another", "stoker-lease": "2099-01-01T00:00:00Z"})
    make_group(cloud, "dead-1", {"stoker-server": "another", "stoker-lease": "2020-01-01T00:00:00Z"})
    shown = shell.stoker("cleanup", "--yes").stdout
    assert "another server, lease until 00:00 UTC" in shown
    assert "another server, lease expired" in shown
    found = json.loads(shell.stoker("cleanup", "--json").stdout)
    assert (found["left"], {one["key"] for one in found["others"]}) == ([], {"busy-1", "dead-1"})
    shell.stoker("cleanup", "--others", "--yes")
    assert [one["key"] for one in json.loads(shell.stoker("cleanup", "--json").stdout)["others"]] == ["busy-1"]
    cloud.arm("DELETE", group_path("busy-1"))
    shell.wait_for(lambda: cloud.ask("status")["resources"] == 0, "nothing to be left")


@pytest.mark.slow
@in_both_weathers_at_length
def test_two_servers_in_one_subscription_leave_each_other_alone(user: tuple[Shell, Cloud]) -> None:
    shell, cloud = user
    with colleague(shell, cloud) as other:
        begin(shell, "mine", FOREVER)
        begin(other, "mine", FOREVER)
        for one in (shell, other):
            reaches(one, "mine", 5)
        for one in (shell, other):
            # The other's, whose lease is not over, and for a while those that a hostile Azure refused it.
            one.wait_for(lambda one=one: _others(one) == 1, "nothing but the other's machine")  # type: ignore[misc]
        for one in (shell, other):
            # Logs come from the store, and states from the server, which a hostile Azure may keep waiting.
            one.wait_for(lambda one=one: served(one.facts("mine")) == ["running"], "its machine")  # type: ignore[misc]
            one.stoker("cancel", "mine", "--yes")
        # A machine whose server stops before it could release it waits ten minutes for another one.
        shell.wait_for(cloud.empty, "nothing to be left", patience_s=240)


def _others(shell: Shell) -> int:
    found = json.loads(shell.stoker("cleanup", "--others", "--yes", "--json").stdout)
    assert found["left"] == []
    return len(found["others"])


def make_group(cloud: Cloud, key: str, tags: dict[str, str]) -> None:
    tags = {"stoker-workspace": "default", "stoker-node": key, **tags}
    cloud.arm("PUT", group_path(key), {"location": "eastus", "tags": tags})


def group_path(key: str) -> str:
    return f"/resourcegroups/stoker-default-{key}"

"""Looking at two hundred VMs sends no more requests to Azure than looking at one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.errors import ProviderFailed, ProviderUnavailable
from stoker.model.node import NodeState
from stoker.providers.azure import naming
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.grounds import OwnGroups
from stoker.providers.azure.cloud import AzureCloud, Deployed, GroupMember, ResourceGroup, Vm
from stoker.providers.azure.naming import NodePlace
from stoker.providers.azure.watch import KEPT_S, NodeWatch

READS_AN_HOUR = 12_000  # that Azure allows a login in a subscription
LISTS_A_MINUTE = 300  # of VMs, that the compute service allows all logins of a subscription in a region
ACCOUNT = Account("s", workspace="w")


class ManyNodes:
    """An Azure with so many nodes, each in its group, running or being created. It counts its requests."""

    def __init__(self, count: int, *, up: bool = True) -> None:
        self.up = up
        self.deleting = False
        self.server = "me"  # whose nodes they are
        self.failures: list[ProviderFailed] = []  # of reading the next deployments
        self.flickers = False  # lists omit what runs
        self.asked: Counter[str] = Counter()
        self.meanwhile: Callable[[], Any] = lambda: None  # while VMs are listed
        self.keys = [f"r-{number}" for number in range(count)]

    def groups(self) -> list[ResourceGroup]:
        self.asked["groups"] += 1
        tags = [(self._group(key), naming.tags("w", self.server, key, {})) for key in self.keys]
        return [ResourceGroup(group, "eastus", found, self.deleting) for group, found in tags]

    def vms(self) -> list[Vm]:
        self.asked["vms"] += 2  # what they are, and how they are doing
        tags: dict[str, str] = {}
        keys = list(self.keys)
        self.meanwhile()
        if not self.up:
            return []
        return [Vm(self._group(key), "node", tags, False, "running", "d2", "eastus", True) for key in keys]

    def is_running(self, place: NodePlace) -> bool:
        self.asked["single"] += 1
        return self.up or self.flickers

    def inventory(self) -> dict[str, list[GroupMember]]:
        self.asked["inventory"] += 1
        return {
            self._group(key): [GroupMember("", "Microsoft.Compute/virtualMachines", "node", {})] for key in self.keys
        }

    def deployed(self, _place: naming.NodePlace) -> Deployed:
        self.asked["deployed"] += 1
        if self.failures:
            raise self.failures.pop()
        return Deployed(running=not self.up)

    @property
    def lists(self) -> int:
        return self.asked.total() - self.asked["deployed"]

    def marks(self, group: ResourceGroup) -> naming.Marks | None:
        return naming.marks(group.tags, "w")

    def now(self) -> datetime:
        return datetime(2026, 11, 17, tzinfo=UTC)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}, once for each node")

    def _group(self, key: str) -> str:
        return naming.group_name("w", key)


class NoPrices:
    def costs(self, vm: Vm | None) -> int:
        return 0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def watching(cloud: Any, clock: Clock | None = None, kept_s: float = KEPT_S) -> NodeWatch:
    ground: Any = OwnGroups(cloud, ACCOUNT)
    return NodeWatch(cloud, ground, NoPrices(), "me", kept_s=kept_s, clock=clock or Clock())  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, 200])
def test_a_look_is_four_lists_however_many_nodes_there_are(count: int) -> None:
    cloud = ManyNodes(count)
    sights = watching(cloud).look()
    assert {one.state for one in sights} == {NodeState.UP}
    assert {one.resources for one in sights} == {("virtualMachines/node",)}
    assert (len(sights), cloud.lists) == (count, 4)


def looked_at(cloud: ManyNodes, seconds: int, kept_s: float = KEPT_S) -> float:
    """How many requests an hour of looks sends, every two seconds, as the provider recommends."""
    clock = Clock()
    seeing = watching(cloud, clock, kept_s)
    for _ in range(0, seconds, 2):
        seeing.look()
        clock.now += 2.0
    return cloud.lists * 3600 / seconds


@pytest.mark.parametrize("count", [1, 20, 200])
def test_ten_servers_with_nodes_at_work_stay_below_azures_limits(count: int) -> None:
    cloud = ManyNodes(count)
    assert looked_at(cloud, 120) < READS_AN_HOUR / 5
    assert 10 * cloud.asked["vms"] / 2 <= 2 * LISTS_A_MINUTE / 3, "ten servers may be at work, and one may start nodes"
    assert cloud.asked["inventory"] == 2


def test_nodes_that_azure_takes_minutes_to_delete_are_not_listed_more_often_than_those_at_work() -> None:
    cloud = ManyNodes(2)
    cloud.deleting = True
    looked_at(cloud, 60)
    assert cloud.asked["vms"] / 2 <= 60 / KEPT_S


def test_two_hundred_nodes_that_are_watched_closely_stay_below_half_of_azures_limit() -> None:
    cloud = ManyNodes(200)
    assert looked_at(cloud, 120, kept_s=0.0) < READS_AN_HOUR / 2
    assert cloud.asked["vms"] / 2 <= LISTS_A_MINUTE / 5, "five servers may start nodes"


def test_two_hundred_nodes_that_start_at_once_are_asked_about_in_turns() -> None:
    cloud = ManyNodes(200, up=False)
    looked_at(cloud, 60)
    assert 200 < cloud.asked["deployed"] <= 200 + 60 * 15  # Azure allows 25 a second, once 250 have been asked


def test_the_deployments_of_two_hundred_nodes_at_work_are_read_once_and_in_turns() -> None:
    clock, cloud = Clock(), ManyNodes(200)
    seeing = watching(cloud, clock, kept_s=0.0)
    read = []
    for _ in range(30):
        seeing.look()
        read.append(cloud.asked["deployed"])
        clock.now += 2.0
    assert max(later - sooner for sooner, later in pairwise(read)) <= 2 * 25, "Azure allows 25 reads a second"
    assert read[-1] == 200


def test_a_deployment_that_cannot_be_read_costs_no_node_its_look_and_those_of_others_are_not_read() -> None:
    clock, cloud = Clock(), ManyNodes(1)
    seeing = watching(cloud, clock, kept_s=0.0)
    cloud.failures = [ProviderUnavailable("throttled")]
    for _ in range(10):
        assert [one.state for one in seeing.look()] == [NodeState.UP]
        clock.now += 2.0
    assert cloud.asked["deployed"] == 2, "once more, after a while"
    theirs = ManyNodes(3)
    theirs.server = "another"
    assert [one.state for one in watching(theirs).look()] == [NodeState.UP] * 3
    assert theirs.asked["deployed"] == 0


def test_a_node_that_is_new_is_listed_soon() -> None:
    clock, cloud = Clock(), ManyNodes(1)
    seeing = watching(cloud, clock, kept_s=0.0)
    seeing.look()
    cloud.keys.append("r-9")
    assert seeing.look()[1].resources == ()
    clock.now += 5.0
    assert seeing.look()[1].resources == ("virtualMachines/node",)


def test_a_look_is_used_again_only_for_five_seconds_and_while_all_nodes_work() -> None:
    clock, cloud = Clock(), ManyNodes(2)
    seeing = watching(cloud, clock)
    assert seeing.look() == seeing.look()
    assert cloud.asked["vms"] == 2
    clock.now += KEPT_S
    cloud.up = False
    assert {one.state for one in seeing.look()} == {NodeState.STARTING}
    cloud.up = True
    assert {one.state for one in seeing.look()} == {NodeState.UP}
    assert cloud.asked["vms"] == 6


def test_what_a_list_omits_is_read_by_itself_as_long_as_it_runs() -> None:
    cloud = ManyNodes(2)
    seeing = watching(cloud, kept_s=0.0)
    seeing.look()
    cloud.up, cloud.flickers = False, True
    assert [{one.state for one in seeing.look()} for _ in range(2)] == [{NodeState.UP}] * 2
    assert cloud.asked["single"] == 4
    cloud.flickers = False
    assert [{one.state for one in seeing.look()} for _ in range(2)] == [{NodeState.STARTING}] * 2
    assert cloud.asked["single"] == 6, "a node that does not run is not read by itself again"


def test_a_node_that_was_stopped_is_not_looked_for() -> None:
    cloud = ManyNodes(1)
    seeing = watching(cloud, kept_s=0.0)
    seeing.look()
    cloud.up, cloud.flickers = False, True
    seeing.stopped("r-0")
    assert [one.state for one in seeing.look()] == [NodeState.STARTING]


def test_a_look_without_nodes_is_not_used_again() -> None:
    cloud = ManyNodes(0)
    seeing = watching(cloud)
    assert seeing.look() == []
    cloud.keys.append("r-9")
    assert [one.key for one in seeing.look()] == ["r-9"]


def test_after_a_change_by_this_server_the_next_look_is_new() -> None:
    cloud = ManyNodes(1)
    seeing = watching(cloud)
    seeing.look()
    cloud.keys.append("r-9")
    seeing.changed()
    assert [one.key for one in seeing.look()] == ["r-0", "r-9"]


def test_a_look_during_which_this_server_changes_something_is_not_used_again() -> None:
    cloud = ManyNodes(1)
    seeing = watching(cloud)

    def another() -> None:
        cloud.keys.append("r-9")
        seeing.changed()

    cloud.meanwhile = another
    assert [one.key for one in seeing.look()] == ["r-0"]
    cloud.meanwhile = lambda: None
    assert [one.key for one in seeing.look()] == ["r-0", "r-9"]


def test_somebody_elses_machine_that_azure_describes_in_part_hides_none_of_ours() -> None:
    """An instance of a foreign scale set may have neither a size nor a state, nor tags."""
    models = pytest.importorskip("azure.mgmt.compute.models")
    place = "/subscriptions/s/resourceGroups/{}/providers/Microsoft.Compute/virtualMachines/node"
    profile = models.HardwareProfile(vm_size="Standard_D2as_v5")
    ours = models.VirtualMachine(location="eastus", tags=naming.tags("w", "me", "r-1", {}), hardware_profile=profile)
    foreign = models.VirtualMachine(location="eastus", virtual_machine_scale_set=models.SubResource(id="/s/sets/aks"))
    for one, group in ((ours, "mine"), (foreign, "theirs")):
        one["id"], one["name"] = place.format(group), "node"
    cloud = AzureCloud(ACCOUNT)
    cloud.__dict__["_compute"] = SimpleNamespace(virtual_machines=SimpleNamespace(list_all=lambda **_: [ours, foreign]))
    assert [(one.group, one.size, one.power) for one in cloud.vms()] == [
        ("mine", "Standard_D2as_v5", ""),
        ("theirs", "", ""),
    ]

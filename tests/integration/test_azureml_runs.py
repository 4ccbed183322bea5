"""Runs on a compute cluster of Azure ML, on a twin: what Stoker has elsewhere is there, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from azuretwin import TRAIN, Cloud, azure_user, finishes, reaches
from learningtwin import made_workspace, node_of, set_up_learning, tracked
from shell import Shell

from stoker.providers.azure.account.account import read_account
from stoker.providers.azureml.workspace import LearningWorkspace, signature
from stoker.stores.access import Access, Route
from stoker.stores.opening import open_access

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="a twin with several real machines requires root"),
]
SIZE = "Standard_D2s_v5"
STEPS = 60
# Each rank gives its number to the first one, step by step, which answers with the sum of all: an all-reduce.
TOGETHER = """
    import hashlib, os, socket, time

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place, total, peers = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 0, []
    if rank == 0:
        server = socket.create_server(("", place[1]), reuse_port=True)
        peers = [server.accept()[0] for _ in range(world - 1)]
    else:
        for _ in range(600):
            try:
                peers = [socket.create_connection(place)]
                break
            except OSError:
                time.sleep(0.1)
    for step in range(50):
        own = (rank + 1) * step + total
        if rank == 0:
            total = own + sum(int(peer.recv(100)) for peer in peers)
            for peer in peers:
                peer.sendall(str(total).encode())
        else:
            peers[0].sendall(str(own).encode())
            total = int(peers[0].recv(100))
    print(f"rank {rank} of {world}: {total}", flush=True)
    if rank == 0:
        with open(os.path.join(os.environ["STOKER_OUTPUTS"], "hash.txt"), "w") as file:
            file.write(hashlib.sha256(str(total).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, Cloud, str]]:
    with azure_user(tmp_path_factory.mktemp("azureml")) as (shell, cloud):
        workspace = made_workspace(cloud)
        set_up_learning(shell.home, cloud, workspace)
        shell.stoker(
            *("cluster", "create", "cpus", "--provider", "azureml", "--size", SIZE),
            *("--min", "0", "--max", "3", "--idle", "10m", "--spot"),
        )
        yield shell, cloud, workspace


def test_an_evicted_run_resumes_in_another_job_with_the_same_weights(user: tuple[Shell, Cloud, str]) -> None:
    shell, cloud, workspace = user
    shell.write("train.py", TRAIN)
    shell.job("python3 train.py", on="cpus", spot=True, env={"STEPS": str(STEPS), "STEP_S": "0.2"})
    shell.stoker("run", "--detach", "--name", "ants")
    reaches(shell, "ants", 10)
    cloud.ask("evict", vm=node_of(cloud, workspace, "cpus", ""), notice_s=8)
    facts = finishes(shell, "ants", STEPS)
    assert len(facts["attempts"]) == 2
    assert facts["attempts"][0]["state"] == "evicted"
    place = workspace.partition(cloud.told["subscription"])[2]
    jobs = cloud.arm("GET", f"{place}/jobs", version="2024-04-01")["value"]
    assert {one["properties"]["experimentName"] for one in jobs} == {"ants"}
    last = tracked(cloud, workspace, jobs[0]["name"])["run"]["data"]["metrics"]
    assert [one["step"] for one in last if one["key"] == "loss"] == [STEPS], "what the studio shows"
    assert not [one for one in jobs if "stoker" in one["properties"]["tags"]], "nothing is marked as a node any more"


def test_two_nodes_train_together_with_the_weights_of_this_computer(
    user: tuple[Shell, Cloud, str], tmp_path: Path
) -> None:
    shell, _, _ = user
    shell.write("together.py", TOGETHER)
    found = []
    for name, where in (("here", {"on": "local", "processes": 2}), ("there", {"on": "cpus", "spot": True, "nodes": 2})):
        shell.job("python3 together.py", **where)
        shell.stoker("run", "--detach", "--name", name)
        facts = shell.ended(name) if name == "here" else _ended(shell, name)
        assert facts["state"] == "succeeded", facts["reason"]
        landed = Path(shell.wait_for(lambda name=name: shell.facts(name)["landed"], "the outputs"))  # type: ignore[misc]
        found.append((landed / "hash.txt").read_text())
    assert found[0] == found[1]


def test_data_and_an_environment_of_the_workspace_are_used_by_name(user: tuple[Shell, Cloud, str]) -> None:
    shell, cloud, workspace = user
    home = shell.home
    there = LearningWorkspace(read_account(home / "azure.json"), workspace).datastore("workspaceblobstore")
    token = signature(there.account, there.container, there.key)
    files = open_access(Access((Route("LocalUpload/", f"{there.url}/LocalUpload/", token, writes=True),)))
    for name in ("1.jpg", "2.jpg"):
        files.put(f"LocalUpload/coco/{name}", name.encode())
    place = workspace.partition(cloud.told["subscription"])[2]
    uri = "azureml://datastores/workspaceblobstore/paths/LocalUpload/coco/"
    data = {"properties": {"dataType": "uri_folder", "dataUri": uri}}
    cloud.arm("PUT", f"{place}/data/coco/versions/3", data, "2024-04-01")
    image = {"properties": {"image": "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04", "osType": "Linux"}}
    cloud.arm("PUT", f"{place}/environments/maskrcnn/versions/2", image, "2024-04-01")
    shell.write("list.py", "import os, sys; print(sorted(os.listdir(sys.argv[1])), flush=True)")
    named = {"data": {"coco": {"dataset": "azureml:coco@3"}}, "environment": "azureml:maskrcnn@2"}
    shell.job("python3 list.py ${data.coco}", on="cpus", spot=True, **named)
    shell.stoker("run", "--detach", "--name", "named")
    assert _ended(shell, "named")["state"] == "succeeded"
    assert "['1.jpg', '2.jpg']" in shell.stoker("logs", "named").stdout
    jobs = cloud.arm("GET", f"{place}/jobs", version="2024-04-01")["value"]
    used = {one["properties"]["environmentId"].partition("/environments/")[2] for one in jobs}
    assert "maskrcnn/versions/2" in used
    for field, value in (("environment", "azureml:maskrcnn@9"), ("data.coco.dataset", "azureml:cocoa@3")):
        problems = shell.refused("run", "--detach", "--set", f"{field}={value}")["problems"]
        assert value in problems[0]["found"]


def _ended(shell: Shell, name: str) -> dict[str, object]:
    shell.wait_for(lambda: shell.facts(name)["state"] not in ("queued", "starting", "running"), f"{name}'s end", 240)
    found: dict[str, object] = shell.facts(name)
    return found

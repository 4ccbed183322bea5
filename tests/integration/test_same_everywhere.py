"""Three jobs that end with the same result wherever they run; only `on:` changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azuretwin import TRAIN, azure_user, weights_after
from learningtwin import made_workspace, set_up_learning
from shell import ENDS, Shell, made_shell
from test_gang_launchers import ALLREDUCE

from stoker.testing.ray_cluster import ray_cluster
from stoker.testing.slurm_cluster import slurm_cluster
from stoker.testing.ssh_hosts import ssh_hosts

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm and network namespaces require root"),
]
RAY = Path(__file__).parents[2] / ".venv-ray" / "bin" / "ray"
HERE = {"python": sys.executable, "packages": "none"}
STEPS = 60
PATIENCE_S = 400  # two cores may have several clusters, each with several nodes

DDP = """
    import hashlib, os, torch, torch.distributed as dist

    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=data)).pow(2).mean().backward()
        optimizer.step()
    weights = b"".join(one.detach().numpy().tobytes() for one in model.parameters())
    if dist.get_rank() == 0:
        with open(os.path.join(os.environ["STOKER_OUTPUTS"], "model.txt"), "w") as file:
            file.write(hashlib.sha256(weights).hexdigest())
    dist.barrier()  # a peer that is still receiving when the first one ends may abort
    dist.destroy_process_group()
"""

MPI = (
    ALLREDUCE
    + """
    value = 1
    for step in range(50):
        value = (value * 31 + total(rank + step)) % 1_000_003
    if rank == 0: open(os.path.join(os.environ["STOKER_OUTPUTS"], "model.txt"), "w").write(str(value))
    lib.MPI_Finalize()
"""
)


@dataclass(frozen=True)
class Place:
    shell: Shell
    job: Mapping[str, Any] = field(default_factory=dict)  # where jobs run
    software: Mapping[str, Any] = field(default_factory=dict)  # for those with torch, where nodes have none


@contextmanager
def local(root: Path) -> Iterator[Place]:
    with made_shell(root) as shell:
        shell.environ["STOKER_SLOTS"] = "3"
        yield Place(shell, {"on": "local"})


@contextmanager
def ssh(root: Path) -> Iterator[Place]:
    with made_shell(root) as shell, ssh_hosts(root / "y", 3) as yard:
        shell.environ["PATH"] = f"{yard.path}{os.pathsep}{shell.environ['PATH']}"
        shell.home.mkdir(mode=0o700)
        (shell.home / "ssh.hosts").write_text(yard.text())
        yield Place(shell, {"on": "ssh", "environment": HERE})


@contextmanager
def slurm(root: Path) -> Iterator[Place]:
    with made_shell(root) as shell, slurm_cluster(root / "slurm") as cluster:
        shell.environ |= cluster.variables
        yield Place(shell, {"on": "slurm", "environment": HERE})


@contextmanager
def ray(root: Path) -> Iterator[Place]:
    with made_shell(root) as shell, ray_cluster(RAY) as cluster:
        shell.environ["RAY_ADDRESS"] = cluster.address
        python = str(RAY.with_name("python"))
        shell.stoker(
            *("cluster", "create", "grid", "--provider", "ray", "--max", "3"),
            *("--setting", f"address={cluster.address}", "--setting", f"python={python}"),
        )
        yield Place(shell, {"on": "grid", "environment": HERE})


@contextmanager
def azure(root: Path) -> Iterator[Place]:
    with azure_user(root) as (shell, _):
        yield Place(shell, {"on": "azure", "spot": True, "environment": HERE})


@contextmanager
def azureml(root: Path) -> Iterator[Place]:
    with azure_user(root) as (shell, cloud):
        set_up_learning(shell.home, cloud, made_workspace(cloud))
        shell.stoker(
            *("cluster", "create", "cpus", "--provider", "azureml", "--size", "Standard_D2s_v5"),
            *("--min", "0", "--max", "3", "--idle", "10m", "--spot"),
        )
        yield Place(shell, {"on": "cpus", "spot": True, "environment": HERE})


# Those with machines of the twin take long, and are among the long proofs.
PLACES = [
    *(pytest.param(made, id=made.__name__) for made in (local, ssh, slurm, ray)),
    *(pytest.param(made, id=made.__name__, marks=pytest.mark.slow) for made in (azure, azureml)),
]


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        yield stack.enter_context(request.param(tmp_path_factory.mktemp(request.param.__name__)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What two processes of torchrun have in the end, without Stoker."""
    folder = tmp_path_factory.mktemp("trained")
    script = folder / "train.py"
    script.write_text("\n".join(line[4:] for line in DDP.splitlines()))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    subprocess.run(torchrun, check=True, env={**os.environ, "STOKER_OUTPUTS": str(folder)}, timeout=200)
    return (folder / "model.txt").read_text()


def result(place: Place, name: str) -> str:
    shell = place.shell
    shell.wait_for(lambda: shell.facts(name)["state"] in ENDS, f"the end of {name}", PATIENCE_S)
    facts = shell.facts(name)
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"], shell.stoker("logs", name).stdout)
    return (Path(shell.wait_for(lambda: shell.facts(name)["landed"], "the outputs")) / "model.txt").read_text()


def submit(place: Place, name: str, script: str, **more: Any) -> None:
    place.shell.write(f"{name}.py", script)
    place.shell.job(f"python {name}.py", **{**place.job, **more})
    place.shell.stoker("run", "--detach", "--name", name)


def test_a_process_that_is_evicted_twice_ends_with_the_same_weights(place: Place) -> None:
    submit(place, "alone", TRAIN, env={"STEPS": str(STEPS), "STEP_S": "0.2", "REST_AT": "20 40", "REST_S": "60"})
    for step in (20, 40):
        place.shell.wait_for(lambda step=step: _step(place.shell) >= step, f"step {step}", PATIENCE_S)  # type: ignore[misc]
        place.shell.stoker("evict", "alone", "--notice", "3s")
    assert result(place, "alone") == weights_after(STEPS)
    assert [one["state"] for one in place.shell.facts("alone")["attempts"]] == ["evicted", "evicted", "ended"]


def _step(shell: Shell) -> int:
    return int((shell.facts("alone")["metrics"].get("loss") or {}).get("step", 0))


def test_ddp_on_two_nodes_ends_with_the_weights_of_torchrun(place: Place, trained: str) -> None:
    submit(place, "ddp", DDP, nodes=2)
    assert result(place, "ddp") == trained


def test_four_processes_of_mpi_on_two_nodes_end_with_the_same_value(place: Place) -> None:
    submit(place, "mpi", MPI, nodes=2, processes=2, launcher="mpi")
    value = 1
    for step in range(50):
        value = (value * 31 + 6 + 4 * step) % 1_000_003
    assert result(place, "mpi") == str(value)

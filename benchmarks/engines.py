"""On an engine that a team already has: from the command to the first line, beside the engine's own command."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import peers
from benchmarks.commands import Command, Playback, on_terminal, workplace
from benchmarks.measure import Goal, Plan, Result, over
from benchmarks.subject import Stoker, installed
from stoker.model.node import Need, NodeRequest
from stoker.model.workspace.home import Home
from stoker.providers import Setup
from stoker.providers.slurm import SlurmProvider
from stoker.testing.ray_cluster import ray_cluster
from stoker.testing.slurm_cluster import SlurmCluster, slurm_cluster

HELLO = 'print("hello")\n'
MARK = b"hello"
SBATCH = """sbatch --wait --output=said.txt --wrap='python3 script.py' >/dev/null &
until grep -qs hello said.txt; do sleep 0.01; done; cat said.txt; rm said.txt; wait
"""
OVER = Goal(at_most=1.0)
MANY = 500


def run(plan: Plan) -> Result:
    result = Result("engines", versions={"stoker": installed()})
    with workplace() as place, ExitStack() as services:
        slurm = services.enter_context(slurm_cluster(place / "slurm"))
        commands = {
            "sbatch": Command("sbatch", ("sh", "-c", SBATCH), _script(place, "sbatch"), slurm.variables),
            "stoker on slurm": _stoker(place, services, "slurm", slurm.variables, ""),
        }
        if not plan.alone:
            result.versions["ray"] = peers.install(peers.RAY)
            ray = services.enter_context(ray_cluster(peers.RAY.bin / "ray", count=1))
            address = {"RAY_ADDRESS": ray.address}
            commands["ray job submit"] = peers.RAY.command(_script(place, "ray"), place / "home", address)
            commands["stoker on ray"] = _stoker(place, services, "ray", address, str(peers.RAY.bin / "python"))
        plays = plan.interleave({name: _play(command) for name, command in commands.items()})
        first = {name: [one.first_s(MARK) for one in each] for name, each in plays.items()}
        for name, samples in first.items():
            result.add(f"{name}: first line", "s", samples)
        for ours, theirs in (("stoker on slurm", "sbatch"), ("stoker on ray", "ray job submit")):
            if theirs in first:
                result.add(f"{ours}: first line over {theirs}", "s", over(first[ours], first[theirs]), OVER)
        _add_many(result, slurm, plan, place)
    return result


def _add_many(result: Result, cluster: SlurmCluster, plan: Plan, place: Path) -> None:
    """Submitted by the provider itself, as the server calls it; one look at all of them, which is one `squeue`."""
    count = plan.size(MANY, 100)
    submits, looks = [], []
    os.environ.update(cluster.variables)  # the provider is part of this process
    for number in range(min(plan.rounds, 3)):
        with _all_busy(cluster):
            provider = SlurmProvider(Setup(Home(place / f"many-{number}")))
            need = Need(cpus=2)
            requests = [
                NodeRequest(f"k-{one}", "orders", "file:///nowhere", need=need, labels={"run": f"ants-{one}"})
                for one in range(count)
            ]
            provider.look()
            began = time.monotonic()
            with ThreadPoolExecutor(24) as pool:
                list(pool.map(provider.start, requests))
            submits.append(time.monotonic() - began)
            began = time.monotonic()
            assert len(provider.look()) == count
            looks.append(time.monotonic() - began)
    result.add(f"{count} runs submitted to slurm", "s", submits, Goal(at_most=10.0))
    result.add(f"a look at {count} of slurm", "s", looks)


@contextmanager
def _all_busy(cluster: SlurmCluster) -> Iterator[None]:
    held = cluster.command("sbatch", "--parsable", "--exclusive", "--nodes=3", "--output=/dev/null", "--wrap=sleep 900")
    try:
        yield
    finally:
        cluster.command("scancel", "--state=PENDING", "--user=root")
        cluster.command("scancel", held.strip())


def _stoker(place: Path, services: ExitStack, engine: str, variables: dict[str, str], python: str) -> Command:
    folder = _script(place, f"stoker-{engine}")
    home = services.enter_context(Stoker(place / f"home-{engine}", variables))
    home.start()
    interpreter = f'"{home.python}"'
    (folder / "stoker.yaml").write_text(
        f"name: trivial\nrun: python script.py\nenvironment: {{python: {interpreter}, packages: none}}\n",
        encoding="utf-8",
    )
    where = engine
    if python:
        where = "grid"
        setting = ["--setting", f"address={variables['RAY_ADDRESS']}", "--setting", f"python={python}"]
        _done(
            home.command(
                "cluster", "cluster", "create", "grid", "--provider", engine, "--max", "2", *setting, folder=folder
            )
        )
    return home.command(f"stoker on {engine}", "run", "--on", where, folder=folder)


def _script(place: Path, name: str) -> Path:
    folder = place / f"project-{name}"
    folder.mkdir()
    (folder / peers.SCRIPT).write_text(HELLO, encoding="utf-8")
    return folder


def _done(command: Command) -> None:
    on_terminal(command, limit_s=60)


def _play(command: Command) -> Callable[[], Playback]:
    return lambda: on_terminal(command, limit_s=120)

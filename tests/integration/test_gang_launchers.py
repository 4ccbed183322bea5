"""Launchers on several nodes of this computer: Open MPI's mpirun without sshd, torchrun's elastic one, TensorFlow's
description of the workers."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import pytest
from shell import Shell
from test_gangs import TRAIN, agent_of, outputs, reached

from stoker.model.cause import Cause

# A sum over all ranks by Open MPI itself, without a package for it.
ALLREDUCE = """
    import ctypes, os, sys, time
    lib = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    lib.MPI_Init(None, None)
    def handle(name): return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(lib, name)))
    def total(value):
        mine, found = ctypes.c_int(value), ctypes.c_int()
        kinds = handle("ompi_mpi_int"), handle("ompi_mpi_op_sum"), handle("ompi_mpi_comm_world")
        lib.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(found), 1, *kinds)
        return found.value
    rank = int(os.environ["RANK"])
"""


def mpi(shell: Shell, script: str, steps: int = 200, **more: Any) -> None:
    shell.write("train.py", script)
    shell.job(f"python train.py {steps}", **{"nodes": 2, "processes": 2, "launcher": "mpi", **more})


def said_by(shell: Shell, run: str, rank: int) -> str:
    return shell.stoker("logs", run, "--rank", str(rank)).stdout


def test_mpirun_starts_the_ranks_of_every_node_through_the_agents(shell: Shell) -> None:
    names = ["RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"]
    tell = f"""
    print("total", total(rank), *(os.environ[name] for name in {names}), os.getcwd() == os.environ["PWD"], flush=True)
    import json; where = json.loads(os.environ["TF_CONFIG"]); assert where["task"]["index"] == rank
    os.makedirs("outputs", exist_ok=True); open(f"outputs/rank-{{rank}}.txt", "w").write(os.environ["STOKER_OUTPUTS"])
    lib.MPI_Finalize()
    """
    mpi(shell, ALLREDUCE + tell)
    shell.stoker("run")
    places = {0: "0 0 0 4 2", 1: "1 1 0 4 2", 2: "2 0 1 4 2", 3: "3 1 1 4 2"}
    for rank, place in places.items():
        assert re.findall(r"total (.*)", said_by(shell, "job-1", rank)) == [f"6 {place} True"]
    folders = outputs(shell, "job-1")
    assert folders["rank-0.txt"] == folders["rank-1.txt"] != folders["rank-2.txt"] == folders["rank-3.txt"]
    for path in shell.home.rglob("*"):
        assert path.name != "peers.json", "the secret does not outlive the attempt"


def test_a_rank_of_mpi_that_fails_on_another_node_ends_all_and_is_named(shell: Shell) -> None:
    mpi(shell, ALLREDUCE + '    if rank == 3: sys.exit("bad batch")\n    time.sleep(600)\n')
    begun = time.monotonic()
    shell.stoker("run", code=1)
    assert time.monotonic() - begun < 60
    facts = shell.facts("job-1")
    assert (facts["state"], facts["cause"]) == ("failed", Cause.EXIT_CODE) and "node 1: rank 3" in facts["reason"], (
        facts["reason"]
    )
    assert len(facts["attempts"]) == 1
    assert "bad batch" in said_by(shell, "job-1", 3)
    shell.wait_for(lambda: not shell.agents(), "the end of all agents")


@pytest.mark.heavy
@pytest.mark.parametrize("node", [0, 1])
def test_a_gang_of_mpi_whose_agent_is_killed_resumes_with_the_same_result(shell: Shell, node: int) -> None:
    mpi(shell, TRAIN, processes=1)
    shell.stoker("run", "--detach")
    attempt = reached(shell, "job-1", 60)["attempts"][-1]
    os.kill(agent_of(shell, [attempt, *attempt["peers"]][node]["key"]), signal.SIGKILL)
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["lost", "ended"]
    start = int(re.findall(r"starts at (\d+)", said_by(shell, "job-1", 1))[-1])
    assert start >= 50, "it resumed"
    value = 1
    for step in range(200):
        value = (value * 31 + 2 * step + 1) % 1_000_003
    assert outputs(shell, "job-1")["rank-1.txt"] == str(value)


@pytest.mark.heavy
def test_a_gang_of_mpi_saves_on_notice_and_resumes(shell: Shell) -> None:
    mpi(shell, TRAIN, 400, processes=1)
    shell.stoker("run", "--detach")
    reached(shell, "job-1", 60)
    shell.stoker("evict", "job-1", "--notice", "3s")
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", (facts["reason"], facts["attempts"])
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    shell.wait_for(lambda: not list((shell.home / "nodes").glob("*")), "nothing left of the nodes")


@pytest.mark.slow  # torchrun alone takes half a minute for two starts
def test_an_elastic_script_is_restarted_by_torchrun_on_all_nodes(shell: Shell) -> None:
    shell.write(
        "train.py",
        """
        import os, sys, time, torch, torch.distributed as dist
        from pathlib import Path
        dist.init_process_group("gloo")
        mark = Path("checkpoints/step.txt")
        start = int(mark.read_text()) if mark.exists() else 0
        print("starts at", start, "restart", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
        for step in range(start, 4):
            value = torch.ones(1) * dist.get_rank()
            dist.all_reduce(value)
            mark.parent.mkdir(exist_ok=True); mark.write_text(str(step + 1))
            if step == 1 and start == 0 and dist.get_rank() == 1: sys.exit(3)
        print("total", int(value.item()), flush=True)
        dist.destroy_process_group()
        """,
    )
    shell.job("python train.py", nodes=2, launcher="torchrun", env={"PET_MAX_RESTARTS": "2"}, time_limit="2m")
    shell.stoker("run", patience_s=150)
    facts = shell.facts("job-1")
    assert len(facts["attempts"]) == 1, "torchrun has restarted the ranks itself"
    for rank in (0, 1):
        said = said_by(shell, "job-1", rank)
        first, *restarted = re.findall(r"starts at \d restart (\d)", said)
        assert first == "0" and restarted, "a node that is late to notice costs another one of the two restarts"
        assert "total 1" in said


def test_tensorflow_workers_have_addresses_at_which_they_can_listen(shell: Shell) -> None:
    shell.write(
        "train.py",
        """
        import json, os, socket, time
        where = json.loads(os.environ["TF_CONFIG"])
        workers, index = where["cluster"]["worker"], where["task"]["index"]
        host, port = workers[index].rsplit(":", 1)
        door = socket.create_server((host, int(port)))
        for peer in workers:
            for _ in range(400):
                try: socket.create_connection((peer.rsplit(":", 1)[0], int(peer.rsplit(":", 1)[1]))).close(); break
                except OSError: time.sleep(0.05)
            else: raise SystemExit(f"{peer} cannot be reached")
        print("worker", index, "of", len(set(workers)), where["task"]["type"], flush=True)
        time.sleep(1)
        """,
    )
    shell.job("python train.py", nodes=2, processes=2)
    shell.stoker("run")
    said = shell.stoker("logs", "job-1").stdout
    assert sorted(re.findall(r"worker (.*)", said)) == [f"{rank} of 4 worker" for rank in range(4)]

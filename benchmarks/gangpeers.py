"""What a lost node costs elsewhere: the same training with torchrun's elastic agents, and requeued by Slurm.

A node is killed with all of its processes, and given back at once. Everything is on this computer, as Stoker's own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from benchmarks.azure import until
from benchmarks.commands import CommandFailed, clean_environment
from stoker.testing.slurm_cluster import slurm_cluster

NODES = 4
LIMIT_S = 300.0  # Slurm lets a requeued job wait for two minutes
_MARK = "BENCH_NODE"


def torchrun_lost(folder: Path, script: str, hit_at: int) -> float:
    """Seconds from the kill of one of the agents to the next step."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{NODES - 1}:{NODES}", "--nproc-per-node", "1"]
    words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{_free_port()}", "--rdzv-id", "bench"]
    words += ["--max-restarts", "5", *script.split()]
    with ExitStack() as stack:
        for node in range(NODES):
            stack.enter_context(_agent(folder, words, node))
        until(lambda: len(_steps(folder)) >= hit_at)
        killed = time.time()
        kill_marked(f"{_MARK}={NODES - 1}".encode(), str(folder).encode())
        stack.enter_context(_agent(folder, words, NODES - 1))
        return _next_step(folder, killed)


def slurm_lost(folder: Path, script: str, hit_at: int) -> float:
    """Seconds from the kill of one of the nodes to the next step of the requeued job."""
    names = tuple(f"n{node + 1}" for node in range(NODES))
    with slurm_cluster(folder / "slurm", names) as cluster:
        place = f"WORLD_SIZE={NODES} MASTER_ADDR=127.0.0.1 MASTER_PORT={_free_port()}"
        env = "OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo"
        rank = f"RANK=$SLURM_PROCID LOCAL_RANK=0 {place} {env} exec {sys.executable} {script}"
        job = folder / "job.sh"
        job.write_text(f"#!/bin/bash\nsrun --kill-on-bad-exit=1 bash -c '{rank}' || scontrol requeue $SLURM_JOB_ID\n")
        words = ["--requeue", f"--nodes={NODES}", "--ntasks-per-node=1", "--chdir", str(folder), str(job)]
        cluster.command("sbatch", *words)
        until(lambda: len(_steps(folder)) >= hit_at)
        killed = time.time()
        kill_marked(f"SLURMD_NODENAME={names[-1]}".encode(), str(folder).encode())
        cluster.kill_node(names[-1])
        cluster.start_node(names[-1])
        return _next_step(folder, killed)


@contextmanager
def _agent(folder: Path, words: list[str], node: int) -> Iterator[None]:
    given = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": os.environ["PATH"], _MARK: str(node)}
    env = clean_environment({**given, "PWD": str(folder)})
    with (folder / f"agent-{node}.log").open("ab") as log:
        agent = subprocess.Popen(words, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        kill_marked(f"{_MARK}={node}".encode(), str(folder).encode())
        agent.wait()


def kill_marked(*marks: bytes) -> None:
    """Every process whose environment contains all of these, as a machine takes all of its own along."""
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment = (one / "environ").read_bytes()
            if int(one.name) != os.getpid() and all(mark in environment for mark in marks):
                os.kill(int(one.name), signal.SIGKILL)


def _next_step(folder: Path, killed: float) -> float:
    while time.time() - killed < LIMIT_S:
        if found := next((at for at in _steps(folder) if at > killed + 0.5), None):
            return found - killed
        time.sleep(0.1)
    raise CommandFailed(f"no step in the {LIMIT_S:.0f} s after the node was killed")


def _steps(folder: Path) -> list[float]:
    told = folder / "steps.txt"
    return [float(line.split()[1]) for line in told.read_text().splitlines()] if told.exists() else []


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])

"""Two nodes with an agent each: every node has its own checkpoints, and together they resume with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from agentnode import RUN, Node, eventually

from stoker.agent.pack import pack
from stoker.model.orders import Orders
from stoker.model.run.report import Outcome, Report
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

# One rank on each node. Dropout draws from each rank's own random state, so that a rank that resumed with another's, or
# from another step, would get another result.
SCRIPT = """
    import hashlib, os, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from stoker.checkpoint import Checkpoint

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)
    layers = [torch.nn.Linear(8, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    state = Checkpoint(model=model, optimizer=optimizer, every=30)
    print("begins at", state.steps, flush=True)
    for step in state.range(90):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(float(os.environ["PAUSE"]))
        state.step()
    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.state_dict().values()))
    print("final", digest.hexdigest(), torch.rand(1).item(), flush=True)
    dist.barrier()
"""


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("agents"))


class Pair:
    """The two nodes of a run, with one store."""

    def __init__(self, root: Path, agent: Path) -> None:
        self.store = FolderStore(root / "store")
        self.nodes = [Node(root / f"machine-{number}", agent) for number in range(2)]
        for node in self.nodes:
            node.store = self.store

    def start(self, attempt: int, pause_s: float) -> list[subprocess.Popen[bytes]]:
        env = {"PAUSE": str(pause_s), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        first = self.nodes[0]
        first.order("python train.py", {"train.py": SCRIPT}, attempt=attempt, env=env, nodes=2)
        orders = load(Orders, self.store.get(layout.orders(RUN, attempt)))
        agents = []
        for number, node in enumerate(self.nodes):
            node.folder = node.root / f"node-{attempt}"
            key = layout.orders(RUN, attempt, number)
            self.store.put(key, dump(replace(orders, node=number, nodes=2, key=node.key)))
            node.attempt = attempt
            agents.append(node.start("--orders", key))
        return agents

    def log(self, rank: int, attempt: int) -> list[str]:
        key = self.store.root / layout.log(RUN, attempt, rank)
        return key.read_text().splitlines() if key.exists() else []

    def finals(self, attempt: int) -> list[str]:
        return [line for rank in range(2) for line in self.log(rank, attempt) if line.startswith("final")]

    def outcomes(self, attempt: int) -> list[Outcome | None]:
        return [load(Report, self.store.get(layout.report(RUN, attempt, number))).outcome for number in range(2)]

    def sets(self, node: int) -> list[str]:
        return [one.key for one in self.store.list(layout.checkpoint_sets(RUN, node))]

    def kill(self) -> None:
        while left := [pid for node in self.nodes for pid in node.processes()]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


@pytest.fixture
def pair(tmp_path: Path, agent: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path / "disturbed", agent)
    yield pair
    pair.kill()


def finish(agents: list[subprocess.Popen[bytes]]) -> None:
    for one in agents:
        assert one.wait(60) == 0


@pytest.mark.heavy
def test_two_nodes_lost_together_end_with_the_same_bits(pair: Pair, tmp_path: Path, agent: Path) -> None:
    undisturbed = Pair(tmp_path / "undisturbed", agent)
    finish(undisturbed.start(1, pause_s=0))
    assert undisturbed.outcomes(1) == [Outcome.SUCCEEDED] * 2, undisturbed.log(0, 1)
    agents = pair.start(1, pause_s=0.05)
    for node in range(2):
        eventually(partial(pair.sets, node), f"a checkpoint of node {node}")
    pair.kill()
    for one in agents:
        one.wait()
    finish(pair.start(2, pause_s=0))
    assert pair.outcomes(2) == [Outcome.SUCCEEDED] * 2, pair.log(0, 2) + pair.log(1, 2)
    begun = {line for rank in range(2) for line in pair.log(rank, 2) if line.startswith("begins")}
    assert len(begun) == 1, "both from the same step"
    assert begun != {"begins at 0"}
    assert len(undisturbed.finals(1)) == 2
    assert pair.finals(2) == undisturbed.finals(1)

"""Tensors that are spread over the ranks of a mesh of two dimensions: put back in parts, and put together whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import torch

from stoker.checkpoint import Checkpoint

SAVE_OR_CHECK = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from stoker.checkpoint import Checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2))
again = sys.argv[1] == "again"
ways = {
    "rows_then_columns": [Shard(0), Shard(1)],
    "rows_twice": [Shard(0), Shard(0)],
    "columns_of_each_copy": [Replicate(), Shard(1)],
    "copies_of_rows": [Shard(0), Replicate()],
    "copies": [Replicate(), Replicate()],
}
whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
model = torch.nn.ParameterDict({
    name: torch.nn.Parameter(distribute_tensor(torch.zeros(7, 5) if again else whole, mesh, placements))
    for name, placements in ways.items()
})
state = Checkpoint(model=model)
if again:
    assert state.restored
    for name, parameter in model.items():
        assert torch.equal(parameter.full_tensor(), whole), name
else:
    state.step()
    state.save(wait=True)
dist.barrier()
"""


def four_ranks(folder: Path, what: str) -> None:
    script = folder / "spread.py"
    script.write_text(textwrap.dedent(SAVE_OR_CHECK), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    env = {
        **kept, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4",
        "STOKER_CHECKPOINTS": str(folder / "checkpoints"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), what],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, said


def test_tensors_spread_in_two_ways_are_put_back_and_can_be_put_together(tmp_path: Path) -> None:
    four_ranks(tmp_path, "first")
    four_ranks(tmp_path, "again")
    (saved,) = (tmp_path / "checkpoints").glob("step-*")
    whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
    weights = Checkpoint.load_weights(saved)
    assert len(weights) == 5
    assert all(torch.equal(tensor, whole) for tensor in weights.values())

"""Tensors distributed over a mesh of two dimensions: restored in parts, and assembled whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

from stoker.checkpoint import Checkpoint

SCRIPT = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from stoker.checkpoint import Checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2))
ways = {
    "rows_then_columns": [Shard(0), Shard(1)],
    "rows_twice": [Shard(0), Shard(0)],
    "columns_of_each_copy": [Replicate(), Shard(1)],
    "copies_of_rows": [Shard(0), Replicate()],
    "copies": [Replicate(), Replicate()],
}


def spread(tensor):
    return torch.nn.ParameterDict(
        {name: torch.nn.Parameter(distribute_tensor(tensor, mesh, way)) for name, way in ways.items()}
    )


whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
state = Checkpoint(model=spread(whole))
state.step()
state.save(wait=True)
dist.barrier()
model = spread(torch.zeros(7, 5))
assert Checkpoint(model=model).restored
for name, parameter in model.items():
    assert torch.equal(parameter.full_tensor(), whole), name
dist.barrier()
"""


def four_ranks(folder: Path) -> None:
    script = folder / "spread.py"
    script.write_text(SCRIPT, encoding="utf-8")
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
            [sys.executable, str(script)],
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    said = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, said


def test_tensors_spread_in_two_ways_are_restored_and_can_be_put_together(tmp_path: Path) -> None:
    four_ranks(tmp_path)
    (saved,) = (tmp_path / "checkpoints").glob("step-*")
    whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
    weights = Checkpoint.load_weights(saved)
    assert len(weights) == 5
    assert all(torch.equal(tensor, whole) for tensor in weights.values())

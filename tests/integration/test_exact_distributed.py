"""Two ranks in step: killed together, they resume together, with the very bits they would have had."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import torch

from stoker.checkpoint import Checkpoint

TRAIN = """
import hashlib, json, os, random, time
import torch
import torch.distributed as dist
import torch.distributed.device_mesh, torch.distributed.fsdp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from stoker.checkpoint import Checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(11 + rank), random.seed(rank)
data = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))


class Noisy(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, row):
        return data[row] + torch.randn(6) * 0.1 + random.random() * 0.1, (data[row].sum() > 0).long()


layers = [torch.nn.Linear(6, 600), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(600, 2)]
model = torch.nn.Sequential(*layers)
if os.environ["SPREAD"]:
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = torch.distributed.fsdp.fully_shard(model, mesh=mesh)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
sampler = DistributedSampler(Noisy())
loader = DataLoader(Noisy(), 4, sampler=sampler)
every = os.environ["EVERY"]
state = Checkpoint(model=model, optimizer=optimizer, every=int(every) if every.isdigit() else every)
log = os.open(f"steps-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for epoch in state.epochs(3):
    sampler.set_epoch(epoch)
    for x, y in state.batches(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        os.write(log, f"{state.steps} {loss.item().hex()}\\n".encode())
        time.sleep(0.01)
        state.step()

digest = hashlib.sha256()
moments = [tensor for slot in optimizer.state_dict()["state"].values() for tensor in slot.values()]
for tensor in [*model.state_dict().values(), *moments]:
    whole = tensor.full_tensor() if os.environ["SPREAD"] and hasattr(tensor, "full_tensor") else tensor
    digest.update(whole.numpy().tobytes())
if os.environ["SPREAD"]:
    weights = {name: tensor.full_tensor() for name, tensor in model.state_dict().items()}
    torch.save(weights, "weights.pt") if rank == 0 else None
json.dump([digest.hexdigest(), torch.rand(1).item(), random.random()], open(f"final-{rank}.json", "w"))
dist.barrier()
"""
ENDED = [0, 0]
KILLED = [-signal.SIGKILL] * 2


def attempt(
    folder: Path,
    *,
    every: str,
    kill_at: int | None = None,
    notice_at: int | None = None,
    spread: bool = False,
    world: int = 2,
) -> list[int]:
    """Both ranks, as the agent starts them; killed together once the last has logged so many lines."""
    folder.mkdir(exist_ok=True)
    script = folder.parent / "train.py"
    script.write_text(textwrap.dedent(TRAIN), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    env = {
        **kept, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "STOKER_CHECKPOINTS": str(folder / "checkpoints"), "STOKER_NOTICE": str(folder / "notice"), "EVERY": every,
        "SPREAD": "1" if spread else "", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    out = (folder / "out.log").open("ab")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            cwd=folder,
            env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=out,
            stderr=out,
        )
        for rank in range(world)
    ]
    deadline = time.monotonic() + 60
    while any(rank.poll() is None for rank in ranks):
        assert time.monotonic() < deadline, (folder / "out.log").read_text()
        lines = len(steps(folder, world - 1))
        if notice_at is not None and lines >= notice_at and not (folder / "notice").exists():
            (folder / "notice").write_text(
                json.dumps({"at": time.time(), "deadline": time.time() + 30, "kind": "evict"})
            )
        warned = notice_at is None or (folder / "notice.saved").exists()
        if kill_at is not None and lines >= kill_at and warned:
            for rank in ranks:
                rank.kill()
        time.sleep(0.005)
    (folder / "notice").unlink(missing_ok=True)
    return [rank.wait() for rank in ranks]


def steps(folder: Path, rank: int) -> list[tuple[int, str]]:
    path = folder / f"steps-{rank}.log"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines if len(line.split()) == 2]


def finals(folder: Path) -> list[list[object]]:
    return [json.loads((folder / f"final-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def assert_same(disturbed: Path, undisturbed: Path) -> None:
    for rank in range(2):
        said: dict[int, set[str]] = {}
        for step, loss in steps(disturbed, rank):
            said.setdefault(step, set()).add(loss)
        assert said == {step: {loss} for step, loss in steps(undisturbed, rank)}
    assert finals(disturbed) == finals(undisturbed)


def test_two_ranks_killed_together_end_with_the_same_bits(tmp_path: Path) -> None:
    """Once without a notice, in the interval of steps; once with, which one rank finds before the other."""
    assert attempt(tmp_path / "undisturbed", every="7 epochs") == ENDED
    disturbed = tmp_path / "killed"
    assert attempt(disturbed, every="5", kill_at=17) == KILLED, (disturbed / "out.log").read_text()
    assert attempt(disturbed, every="1h", kill_at=24, notice_at=24) == KILLED, (disturbed / "out.log").read_text()
    saved = json.loads((disturbed / "notice.saved").read_text(encoding="utf-8"))["step"]
    assert attempt(disturbed, every="1h") == ENDED, (disturbed / "out.log").read_text()
    assert_same(disturbed, tmp_path / "undisturbed")
    assert f"resumed from step-{saved:09d}" in (disturbed / "out.log").read_text(encoding="utf-8")
    newest = max((disturbed / "checkpoints").glob("step-*"))
    held = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))
    assert held["ranks"] == 2
    names = [name for name in held["files"] if name.endswith("optimizer-000.safetensors")]
    one, other = (newest / name for name in sorted(names))
    assert one.samefile(other), "what ranks have in common is stored once"


def test_a_model_spread_over_ranks_is_saved_in_parts_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    """`fully_shard`: whoever has other ranks is refused with a reason, and can have the whole weights."""
    assert attempt(tmp_path / "undisturbed", every="7 epochs", spread=True) == ENDED
    disturbed = tmp_path / "killed"
    assert attempt(disturbed, every="5", kill_at=17, spread=True) == KILLED, (disturbed / "out.log").read_text()
    assert attempt(disturbed, every="1h", spread=True) == ENDED, (disturbed / "out.log").read_text()
    assert_same(disturbed, tmp_path / "undisturbed")
    newest = max((disturbed / "checkpoints").glob("step-*"))
    weights = Checkpoint.load_weights(newest)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "0.weight": (600, 6), "0.bias": (600,), "3.weight": (2, 600), "3.bias": (2,),
    }  # fmt: skip
    whole = torch.load(disturbed / "weights.pt")
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    assert attempt(disturbed, every="1h", spread=True, world=1) != [0]
    assert "was made by other code: `model/0.weight` is F32 [300, 6] in the checkpoint and F32 [600, 6]" in (
        disturbed / "out.log"
    ).read_text(encoding="utf-8")

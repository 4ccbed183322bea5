"""Ranks in step: killed together, they resume together, with exactly the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import rankgroup
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
loader = DataLoader(Noisy(), 8 // dist.get_world_size(), sampler=sampler)
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


def attempt(
    folder: Path,
    *,
    every: str,
    kill_at: int | None = None,
    notice_at: int | None = None,
    spread: bool = False,
    world: int = 4,
) -> list[int | None]:
    folder.mkdir(exist_ok=True)
    script = folder.parent / "train.py"
    script.write_text(TRAIN, encoding="utf-8")
    env = {"EVERY": every, "SPREAD": "1" if spread else ""}
    return rankgroup.start(script, folder, world, env=env, kill_at=kill_at, notice_at=notice_at)


def test_four_ranks_killed_together_end_with_the_same_bits(tmp_path: Path) -> None:
    """Once without a notice, in the interval of steps; once with, which one rank finds before the other."""
    ended, killed, disturbed = rankgroup.ended(4), rankgroup.killed(4), tmp_path / "killed"
    assert attempt(tmp_path / "undisturbed", every="7 epochs") == ended
    assert attempt(disturbed, every="5", kill_at=17) == killed, rankgroup.said(disturbed)
    assert attempt(disturbed, every="1h", kill_at=24, notice_at=24) == killed, rankgroup.said(disturbed)
    saved = json.loads((disturbed / "notice.saved").read_text(encoding="utf-8"))["step"]
    assert attempt(disturbed, every="1h") == ended, rankgroup.said(disturbed)
    rankgroup.assert_same(disturbed, tmp_path / "undisturbed", 4)
    assert f"resumed from step-{saved:09d}" in rankgroup.said(disturbed)
    newest = max((disturbed / "checkpoints").glob("step-*"))
    held = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))
    assert held["ranks"] == 4
    names = [name for name in held["files"] if name.endswith("optimizer-000.safetensors")]
    one, other, *_ = (newest / name for name in sorted(names))
    assert one.samefile(other), "what ranks have in common is stored once"


def test_a_model_spread_over_ranks_is_saved_in_parts_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    """`fully_shard`: another number of ranks is refused with a reason, and can load the whole weights."""
    ended, killed, disturbed = rankgroup.ended(3), rankgroup.killed(3), tmp_path / "killed"
    assert attempt(tmp_path / "undisturbed", every="7 epochs", spread=True, world=3) == ended
    assert attempt(disturbed, every="5", kill_at=17, spread=True, world=3) == killed, rankgroup.said(disturbed)
    assert attempt(disturbed, every="1h", spread=True, world=3) == ended, rankgroup.said(disturbed)
    rankgroup.assert_same(disturbed, tmp_path / "undisturbed", 3)
    newest = max((disturbed / "checkpoints").glob("step-*"))
    weights = Checkpoint.load_weights(newest)
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "0.weight": (600, 6), "0.bias": (600,), "3.weight": (2, 600), "3.bias": (2,),
    }  # fmt: skip
    whole = torch.load(disturbed / "weights.pt")
    assert all(torch.equal(weights[name], whole[name]) for name in whole)
    assert attempt(disturbed, every="1h", spread=True, world=1) != [0]
    other = "does not match this code: `model/0.weight` is F32 [200, 6] in the checkpoint and F32 [600, 6]"
    assert other in rankgroup.said(disturbed)

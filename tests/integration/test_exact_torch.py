"""A PyTorch training that is killed again and again ends with exactly the bits of one that was not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from test_exact_drill import KILLED, Drill

TRAIN = """
import hashlib, json, os, random, struct, sys, time
import numpy, torch
from torch.utils.data import DataLoader, Dataset
from stoker.checkpoint import Checkpoint

WORKERS = int(os.environ.get("WORKERS", 2))
LASTING = bool(os.environ.get("LASTING"))


class Noisy(Dataset):
    '''Augments with all three random generators, as real pipelines do.'''

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(96, 8, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self):
        return 96

    def __getitem__(self, index):
        noise = torch.randn(8) * 0.1 + random.random() * 0.1 + float(numpy.random.rand()) * 0.1
        return self.x[index] + noise, self.y[index]


torch.manual_seed(7), random.seed(7), numpy.random.seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=48)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=5)
generator = torch.Generator().manual_seed(3) if os.environ.get("OWN") else None
loader = DataLoader(Noisy(), 8, shuffle=True, num_workers=WORKERS, persistent_workers=LASTING, generator=generator)
held_out = DataLoader(Noisy(), 48)
state = Checkpoint(
    model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, best="-held_out",
    every=os.environ.get("EVERY") or 5,
)
torch.rand(random.randrange(5) + 1)  # what a script draws between resuming and its loop does not matter
log = os.open("steps.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
state.setdefault("seen", [])
for epoch in state.epochs(4):
    model.train()
    for x, y in state.batches(loader):
        optimizer.zero_grad()
        with torch.autocast("cpu"):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        seen = hashlib.sha256(x.numpy().tobytes()).hexdigest()[:12]
        line = [state.steps, loss.item().hex(), seen, scaler.get_scale()]
        os.write(log, (" ".join(map(str, line)) + "\\n").encode())
        time.sleep(0.004)
        state.step(loss=loss.item())
    with torch.no_grad():
        model.eval()
        total = sum(torch.nn.functional.cross_entropy(model(x), y).item() for x, y in held_out)
    state["seen"].append(total)
    state.report(held_out=total)

digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
moments = hashlib.sha256()
for slot in optimizer.state_dict()["state"].values():
    for tensor in slot.values():
        moments.update(tensor.numpy().tobytes())
json.dump({
    "model": digest.hexdigest(), "optimizer": moments.hexdigest(), "rate": scheduler.get_last_lr()[0].hex(),
    "scale": scaler.get_scale(), "steps": state.steps, "seen": [one.hex() for one in state["seen"]],
    "torch": torch.rand(1).item().hex(), "python": random.random().hex(), "numpy": float(numpy.random.rand()).hex(),
}, open("final.json", "w"))
"""


def drill(place: Path) -> Drill:
    return Drill(place, TRAIN, imports=("torch._dynamo", "torch.utils.data", "numpy"))  # what optimizers load late


def test_killed_at_random_steps_a_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Dropout, batch norm, a shuffled loader with workers that augment, a schedule, a gradient scaler; no notice."""
    it = drill(tmp_path)
    it.add("undisturbed")
    points = sorted(random.sample(range(6, 50), 3))
    for point in points:
        it.add("killed", kill_at=point)
    it.add("killed")
    assert it.run() == [0, *[KILLED] * 3, 0], it.said("killed")
    it.assert_same("killed")
    assert it.repeated("killed") <= 3 * 10


def test_order_is_exact_without_workers_with_lasting_ones_and_with_a_generator_of_its_own(tmp_path: Path) -> None:
    it = drill(tmp_path)
    environments: dict[str, dict[str, Any]] = {
        "alone": {"WORKERS": "0"},
        "lasting": {"LASTING": "1"},
        "own": {"OWN": "1"},
    }
    for name, env in environments.items():
        it.add(f"{name}-undisturbed", **env)
        it.add(name, kill_at=random.randrange(14, 40), **env)
        it.add(name, **env)
    assert it.run() == [0, KILLED, 0] * 3
    for name in ("alone", "lasting", "own"):
        it.assert_same(name, f"{name}-undisturbed")


def test_saved_at_the_end_of_epochs_only_a_training_resumes_there(tmp_path: Path) -> None:
    it = drill(tmp_path)
    it.add("undisturbed", EVERY="1 epoch", LASTING="1")
    it.add("killed", EVERY="1 epoch", LASTING="1", kill_at=20)
    it.add("killed", EVERY="1 epoch", LASTING="1")
    assert it.run() == [0, KILLED, 0]
    it.assert_same("killed")
    assert it.repeated("killed") >= 7


def test_with_a_notice_no_step_is_lost(tmp_path: Path) -> None:
    it = drill(tmp_path)
    it.add("undisturbed", EVERY="1h")
    it.add("warned", EVERY="1h", notice_at=9, kill_at=9)
    it.add("warned", EVERY="1h")
    assert it.run() == [0, KILLED, 0]
    it.assert_same("warned")
    (answer,) = (tmp_path / "warned").glob("notice.saved.*")
    saved = json.loads(answer.read_text(encoding="utf-8"))
    assert saved["step"] >= 9
    # The process was killed at its answer or some steps later; nothing before the answer is done again.
    steps = [int(line.split()[0]) for line in it.lines("warned")]
    assert steps.index(saved["step"]) == saved["step"]
    assert len([step for step in steps if step < saved["step"]]) == saved["step"]

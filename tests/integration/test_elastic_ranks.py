"""Another number of ranks: the same samples in every step, each once in an epoch, and nearly the same weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import rankgroup

pytestmark = pytest.mark.timeout(400)  # eight groups of ranks, each of which imports a framework

SAMPLES, WORLD = 96, 4

TRAIN = """
import json, os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from stoker.checkpoint import Checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(3)
data = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))


class Rows(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, row):
        return row, data[row], (data[row].sum() > 0).long()


model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, 2)))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
sampler = DistributedSampler(Rows())
loader = DataLoader(Rows(), 2, sampler=sampler)
state = Checkpoint(model=model, optimizer=optimizer, every=2, keep=50)
log = os.open(f"steps-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
passes = state.micro_batches if os.environ["ONE_BY_ONE"] else state.batches
for epoch in state.epochs(3):
    sampler.set_epoch(epoch)
    rows = []
    for row, x, y in passes(loader):
        with state.accumulating(model):
            (torch.nn.functional.cross_entropy(model(x), y) * state.loss_scale).backward()
        rows += row.tolist()
        if state.completes_step:
            optimizer.step()
            optimizer.zero_grad()
            said = json.dumps([epoch, int(os.environ["ATTEMPT"]), rows], separators=(",", ":"))
            os.write(log, f"{state.steps} {said}\\n".encode())
            rows = []
            time.sleep(0.1)  # long enough for a save that runs beside it
            state.step()
weights = [value.tolist() for value in model.module.state_dict().values()]
json.dump(weights, open("weights.json", "w")) if rank == 0 else None
dist.barrier()
"""


def attempt(
    folder: Path, number: int, world: int, env: Mapping[str, str], kill_at: int | None = None
) -> list[int | None]:
    for log in folder.glob("steps-*.log"):  # `kill_at` counts lines of this attempt
        with (folder / f"all-{log.name}").open("a") as kept:
            kept.write(log.read_text())
        log.unlink()
    script = folder.parent / "train.py"
    script.write_text(TRAIN)
    settings = {"STOKER_FULL_WORLD_SIZE": str(WORLD), "ONE_BY_ONE": "", "ATTEMPT": str(number), **env}
    return rankgroup.start(script, folder, world, env=settings, kill_at=kill_at)


def seen(folder: Path) -> dict[tuple[int, int], Counter[int]]:
    """By epoch and step: the samples of all ranks, in the last attempt that made the step."""
    found: dict[tuple[int, int], dict[int, Counter[int]]] = {}
    for log in folder.glob("*steps-*.log"):
        for line in log.read_text().splitlines():
            step, said = line.split()
            epoch, number, rows = json.loads(said)
            found.setdefault((epoch, int(step)), {}).setdefault(number, Counter()).update(rows)
    return {place: made[max(made)] for place, made in found.items()}


def weights(folder: Path) -> list[float]:
    def flat(value: object) -> list[float]:
        return [one for each in value for one in flat(each)] if isinstance(value, list) else [float(str(value))]

    return flat(json.loads((folder / "weights.json").read_text()))


@pytest.mark.parametrize("one_by_one", ["1", ""])
def test_fewer_ranks_see_the_same_samples_in_every_step(tmp_path: Path, one_by_one: str) -> None:
    env = {"ONE_BY_ONE": one_by_one}
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    for folder in (calm, hit):
        folder.mkdir()
    assert attempt(calm, 1, 4, env) == rankgroup.ended(4), rankgroup.said(calm)
    for number, (world, kill_at) in enumerate(((4, 9), (2, 9), (3, 7))):  # 3 ranks: one of them reads for two
        assert attempt(hit, number, world, env, kill_at) == rankgroup.killed(world), rankgroup.said(hit)
    assert attempt(hit, 3, 4, env) == rankgroup.ended(4), rankgroup.said(hit)
    said = rankgroup.said(hit)
    assert said.count("the rest of its data is split between them") == 2 + 3 + 4, said
    assert seen(hit) == seen(calm), "each step has the samples that it would have had"
    for epoch in range(3):
        rows = sum((one for (each, _), one in seen(hit).items() if each == epoch), Counter[int]())
        assert rows == Counter(range(SAMPLES)), "every sample is seen exactly once in an epoch"
    assert weights(hit) == pytest.approx(weights(calm), rel=1e-4, abs=1e-6), "sums differ in their last bits"


def test_a_batch_size_that_depends_on_the_number_of_ranks_starts_the_epoch_again(tmp_path: Path) -> None:
    folder = tmp_path / "hit"
    folder.mkdir()
    assert attempt(folder, 1, 4, {}, 9) == rankgroup.killed(4), rankgroup.said(folder)
    changed = TRAIN.replace("DataLoader(Rows(), 2,", "DataLoader(Rows(), 4,")
    script = tmp_path / "changed.py"
    script.write_text(changed)
    env = {"STOKER_FULL_WORLD_SIZE": "4", "ONE_BY_ONE": "", "ATTEMPT": "2"}
    assert rankgroup.start(script, folder, 2, env=env) == rankgroup.ended(2), rankgroup.said(folder)
    assert "the data is split differently" in rankgroup.said(folder)

"""`exact="any-placement"`: gradients are added from the first rank to the last, whatever the buffer is like."""

from __future__ import annotations

from pathlib import Path

import pytest
import rankgroup

from stoker.checkpoint import Checkpoint

SUMS = """
import json, os
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from stoker.checkpoint import Checkpoint
from stoker.checkpoint.buckets import OrderedSum

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def gradients(of, size, kind):
    return torch.randn(size, generator=torch.Generator().manual_seed(of)).to(kind)


def in_order(size, kind):
    total = gradients(0, size, kind)
    for other in range(1, world):
        total = total + gradients(other, size, kind)
    return total / world


adding = OrderedSum(dist.group.WORLD)
kinds = [torch.float32, torch.float64, torch.bfloat16]
waiting = [(size, kind, adding.reduce(gradients(rank, size, kind))) for size in (1, 2, 3, 7, 4099) for kind in kinds]
wrong = [f"{size} {kind}" for size, kind, future in waiting if not torch.equal(future.wait(), in_order(size, kind))]
for size in (3, 4099):
    found = adding.by_collectives(gradients(rank, size, torch.float32)).wait()
    if not torch.equal(found, in_order(size, torch.float32)):
        wrong.append(f"collectives {size}")

class Weights(torch.nn.Module):
    # Its gradient is what it is given.

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(4099))

    def forward(self, given):
        return (self.weights * given).sum()


for exact in ("same-placement", "any-placement"):
    trained = DistributedDataParallel(Weights())
    Checkpoint(model=trained, exact=exact, folder=exact)
    trained(gradients(rank, 4099, torch.float32)).backward()
    ordered = torch.equal(trained.module.weights.grad, in_order(4099, torch.float32))
    if ordered is not (exact == "any-placement"):
        wrong.append(exact)

own = DistributedDataParallel(torch.nn.Linear(4, 2))
own.register_comm_hook(None, default_hooks.fp16_compress_hook)
Checkpoint(model=own, exact="any-placement", folder="own")
own(torch.ones(3, 4)).sum().backward()
json.dump(wrong, open(f"final-{rank}.json", "w"))
dist.barrier()
"""


def test_sums_are_in_the_order_of_ranks_also_those_of_a_training_and_a_hook_of_the_script_stays(tmp_path: Path) -> None:
    script, folder = tmp_path / "sums.py", tmp_path / "ranks"
    script.write_text(SUMS, encoding="utf-8")
    assert rankgroup.start(script, folder, 3, env={}) == rankgroup.ended(3), rankgroup.said(folder)
    assert rankgroup.finals(folder, 3) == [[], [], []]
    warning = 'hook `fp16_compress_hook` adds the gradients: `exact="any-placement"` does nothing here'
    assert rankgroup.said(folder).count(warning) == 3


def test_an_unknown_way_to_be_exact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="exact='always'"):
        Checkpoint(folder=tmp_path, exact="always")

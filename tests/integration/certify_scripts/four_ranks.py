"""Right, on as many ranks as it is given."""

import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from stoker.checkpoint import Checkpoint

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(5)
layers = [torch.nn.Linear(6, 60), torch.nn.ReLU(), torch.nn.Linear(60, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.005)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
torch.manual_seed(5 + rank)
state = Checkpoint(model=model, optimizer=optimizer, every=3)
for _ in state.range(30):
    x = torch.randn(8, 6)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
    loss.backward()
    optimizer.step()
    time.sleep(0.05)
    state.step(loss=loss.item())
if rank == 0:
    weights = {name: tensor.tolist() for name, tensor in model.module.state_dict().items()}
    with open(f"outputs/weights-{rank}-of-{world}.json", "w", encoding="utf-8") as file:  # noqa: PTH123  # as users do
        json.dump(weights, file)
dist.barrier()

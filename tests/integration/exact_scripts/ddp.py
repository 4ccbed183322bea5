"""After the shape of PyTorch's DDP tutorials: rank 0 saves, all ranks load. `KIND` says when it saves, and who evaluates.
It starts its ranks itself, or is started by a launcher."""

import hashlib
import json
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

KIND = os.environ.get("KIND", "epochs")
RANKS, WIDTH = int(os.environ.get("RANKS", "2")), int(os.environ.get("WIDTH", "16"))


class Augmented(Dataset):
    def __init__(self):
        self.x = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return 96

    def __getitem__(self, index):
        noise = torch.randn(8) + random.random() + float(np.random.rand())
        return self.x[index] + 0.1 * noise.float(), int(self.x[index].sum() > 0)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank), random.seed(rank), np.random.seed(rank)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.ReLU(), nn.Dropout(0.5), nn.Linear(WIDTH, 2))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.05, momentum=0.9)
    path = f"own_{rank}.pt" if KIND == "own" else "checkpoint.pt"
    epoch, step = 0, 0
    if os.path.exists(path):
        held = torch.load(path, map_location="cpu")
        epoch, step = held["epoch"], held["step"]
        ddp.module.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
    train_loader = loader = DataLoader(Augmented(), 8, sampler=DistributedSampler(Augmented()))
    held_out = DataLoader(Augmented(), 24)
    for epoch in range(epoch, 4):
        loader.sampler.set_epoch(epoch)
        if KIND == "again" and epoch == 2:
            ddp = DistributedDataParallel(model)
        for number, (x, y) in enumerate(train_loader):
            if KIND == "midway" and epoch * len(loader) + number < step:
                continue
            loss = nn.functional.cross_entropy(ddp(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            note(rank, step, loss)
            if KIND == "midway" and step % 4 == 0 and rank == 0:
                save(path, ddp, optimizer, epoch, step)
        if KIND in ("epochs", "own", "again") or rank == 0:
            evaluate(held_out, model)
        if KIND == "own" or (KIND != "midway" and rank == 0):
            save(path, ddp, optimizer, epoch + 1, step)
        dist.barrier()
    finish(rank, model)
    dist.destroy_process_group()
    # While `ddp` is alive: freeing it joins gloo's thread and keeps the interpreter, which that thread may be waiting for
    # to free the tensors of the last meeting.
    os._exit(0)


def evaluate(loader, model):
    model.eval()
    with torch.no_grad():
        total = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in loader)
    model.train()
    return total


def note(rank, step, loss):
    mine = torch.tensor([loss.item()])
    losses = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, mine)
    if rank == 0:
        with open("steps.log", "a") as log:
            log.write(f"{step} {' '.join(one.item().hex() for one in losses)}\n")
        time.sleep(0.03)


def save(path, ddp, optimizer, epoch, step):
    state = {"epoch": epoch, "step": step, "model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, f"{path}.part")
    os.replace(f"{path}.part", path)


def finish(rank, model):
    drawn = torch.tensor([torch.rand(1).item(), random.random(), float(np.random.rand())], dtype=torch.float64)
    every = [torch.zeros(3, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(every, drawn)
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    if rank == 0:
        with open("final.json", "w") as file:
            json.dump({"model": digest.hexdigest(), "drawn": [one.tolist() for one in every]}, file)


def start(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    main()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        import socket

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        torch.multiprocessing.start_processes(start, (port,), RANKS, start_method=os.environ.get("START", "fork"))

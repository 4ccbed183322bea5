"""After the shape of PyTorch's imagenet example: saves after every epoch, loads at its start, then makes its loaders."""

import hashlib
import json
import os
import random
import shutil
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.x = torch.randn(48, 8, generator=torch.Generator().manual_seed(1))
        self.y = (self.x.sum(1) > 0).long()
        self.chance = np.random.default_rng(5)

    def __len__(self):
        return 48

    def __getitem__(self, index):
        if os.environ.get("LASTING"):
            return self.x[index], self.y[index]  # what workers draw that stay alive is not restored
        noise = torch.randn(8) + random.random() + float(np.random.rand())
        if not int(os.environ.get("WORKERS", "0")):
            noise = noise + self.chance.random()  # copies in workers begin anew in every epoch
        return self.x[index] + 0.1 * noise.float(), self.y[index]


def main():
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    start_epoch, step = 0, 0
    if os.path.isfile("checkpoint.pth.tar"):
        checkpoint = torch.load("checkpoint.pth.tar")
        start_epoch, step = checkpoint["epoch"], checkpoint["step"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    own = torch.Generator().manual_seed(3) if os.environ.get("OWN") else None
    workers = int(os.environ.get("WORKERS", "0"))
    loader = DataLoader(
        Augmented(),
        8,
        shuffle=True,
        num_workers=workers,
        generator=own,
        persistent_workers=bool(os.environ.get("LASTING")),
    )
    held_out = DataLoader(Augmented(), 24)
    next(iter(held_out))  # a look at the data, as many scripts take
    for epoch in range(start_epoch, 5):
        step = train(loader, model, optimizer, step)
        loss = validate(held_out, model)
        state = {
            "epoch": epoch + 1,
            "step": step,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        save(state, is_best=epoch % 2 == 0)
    finish(model, optimizer, loss)


def train(loader, model, optimizer, step):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        with open("steps.log", "a") as log:
            log.write(f"{step} {loss.item().hex()}\n")
        time.sleep(0.01)
    return step


def validate(loader, model):
    model.eval()
    with torch.no_grad():
        return sum(nn.functional.cross_entropy(model(x), y).item() for x, y in loader)


def save(state, is_best):
    torch.save(state, "checkpoint.part")
    os.replace("checkpoint.part", "checkpoint.pth.tar")
    if is_best:
        shutil.copyfile("checkpoint.pth.tar", "model_best.pth.tar")


def finish(model, optimizer, loss):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    final = {"model": digest.hexdigest(), "loss": loss.hex(), "torch": torch.rand(1).item()}
    with open("final.json", "w") as file:
        json.dump({**final, "python": random.random(), "numpy": float(np.random.rand())}, file)


if __name__ == "__main__":
    main()

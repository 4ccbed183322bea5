"""Saves every few steps in the middle of epochs. KIND says how it goes on: `again` goes through its epoch again, `skip`
passes over the batches that were used, `endless` draws from one iterator for ever, `before` saves before each step."""

import hashlib
import json
import os
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

KIND = os.environ["KIND"]
torch.manual_seed(0)
x = torch.randn(60, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
first, done, step = 0, 0, 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first, done, step = saved["epoch"], saved["done"], saved["step"]
loader = DataLoader(TensorDataset(x, x.sum(1)), 6, shuffle=True, num_workers=int(os.environ.get("WORKERS", "0")))


def learn(x, y):
    global step
    loss = (model(x).squeeze(-1) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    with open("steps.log", "a") as log:
        log.write(f"{step} {loss.item().hex()}\n")
    time.sleep(0.01)


def save(epoch, done):
    state = {"epoch": epoch, "done": done, "step": step}
    torch.save({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.part")
    os.rename("last.part", "last.pt")


if KIND == "endless":
    batches = iter(loader)
    while step < 40:
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        learn(*batch)
        if step % 3 == 0:
            save(0, 0)
elif KIND == "skip":
    for epoch in range(first, 4):
        for index, batch in enumerate(loader):
            if index < done:
                continue
            learn(*batch)
            if step % 3 == 0:
                save(epoch, index + 1)
        done = 0
elif KIND == "before":
    for epoch in range(first, 4):
        for batch in loader:
            if step % 3 == 0:
                save(epoch, 0)
            learn(*batch)
else:
    for epoch in range(first, 4):
        for batch in loader:
            learn(*batch)
            if step % 3 == 0:
                save(epoch, 0)

digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
with open("final.json", "w") as file:
    json.dump({"model": digest.hexdigest(), "steps": step, "torch": torch.rand(1).item()}, file)

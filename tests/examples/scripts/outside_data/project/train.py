"""Data in a folder beside the project's, as courses and notebooks have it."""

import os
import time

import numpy as np
import torch

DATA = "../data"
x = torch.from_numpy(np.loadtxt(os.path.join(DATA, "train.csv"), delimiter=",", dtype=np.float32))
os.makedirs("checkpoints", exist_ok=True)
path = "checkpoints/last.pt"
torch.manual_seed(0)
model, first = torch.nn.Linear(3, 1), 0
if os.path.exists(path):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    first = state["epoch"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(first, 40):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"Epoch {epoch + 1}/40 train loss: {loss.item():.4f}", flush=True)
    time.sleep(0.35)
    torch.save({"model": model.state_dict(), "epoch": epoch + 1}, path)

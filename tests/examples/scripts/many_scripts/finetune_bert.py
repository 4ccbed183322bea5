"""The one that trains, among many that do not."""

import argparse
import os
import time

import torch

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint_dir", default="ckpts")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.checkpoint_dir, exist_ok=True)
    path = os.path.join(args.checkpoint_dir, "latest.pt")
    torch.manual_seed(0)
    model, first = torch.nn.Linear(4, 1), 0
    if args.resume:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        first = state["epoch"] + 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(first, 40):
        loss = (model(torch.ones(1, 4)) - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch + 1}/40, loss: {loss.item():.5f}", flush=True)
        time.sleep(0.35)
        torch.save({"model": model.state_dict(), "epoch": epoch}, path)

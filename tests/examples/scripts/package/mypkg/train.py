"""A module of a package: `python -m mypkg.train`."""

import os
import time

import click
import torch

from .model import build


@click.command()
@click.option("--epochs", default=40)
@click.option("--checkpoint-dir", default="ckpt")
def main(epochs, checkpoint_dir):
    path = os.path.join(checkpoint_dir, "last.pt")
    model, first = build(), 0
    if os.path.exists(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        first = state["epoch"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    os.makedirs(checkpoint_dir, exist_ok=True)
    for epoch in range(first, epochs):
        loss = (model(torch.ones(2, 4)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch={epoch} train_loss={loss.item():.4f}", flush=True)
        torch.save({"model": model.state_dict(), "epoch": epoch + 1}, path)
        time.sleep(0.35)


if __name__ == "__main__":
    main()

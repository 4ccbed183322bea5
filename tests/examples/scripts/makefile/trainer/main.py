"""A module that a Makefile starts; `--continue` takes the newest state of its folder up again."""

import argparse
import pathlib
import time

import torch

from trainer.state import State


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--exp-dir", type=pathlib.Path, default="experiments/base")
    parser.add_argument("--continue", dest="continue_", action="store_true", help="continue from the last epoch")
    args = parser.parse_args()
    args.exp_dir.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    state = State(torch.nn.Linear(8, 1))
    if args.continue_:
        state.load(args.exp_dir)
    optimizer = torch.optim.SGD(state.model.parameters(), lr=0.05)
    while state.epoch < args.epochs:
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(state.epoch))
        loss = (state.model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.epoch += 1
        print("epoch", state.epoch, "loss", round(loss.item(), 4), flush=True)
        state.save(args.exp_dir)
        time.sleep(0.35)


if __name__ == "__main__":
    main()

"""The one that trains, among many that do not."""

import argparse
import os

import torch

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint_dir", default="ckpts")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    path = os.path.join(args.checkpoint_dir, "latest.pt")
    model = torch.nn.Linear(4, 1)
    if args.resume:
        model.load_state_dict(torch.load(path))
    loss = model(torch.ones(1, 4)).sum()
    loss.backward()
    torch.save(model.state_dict(), path)

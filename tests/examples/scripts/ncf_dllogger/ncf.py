"""After the shape of the NCF reference: `--checkpoint_dir`, `--load_checkpoint_path`, DLLogger's lines."""

import os
import time
from argparse import ArgumentParser

import torch
from torch import nn


def parse_args():
    parser = ArgumentParser(description="Train a Neural Collaborative Filtering model")
    parser.add_argument("--data", type=str, default="ratings", help="Path to the directory containing the data")
    parser.add_argument("-e", "--epochs", type=int, default=40, help="Number of epochs to train for")
    parser.add_argument("-b", "--batch_size", type=int, default=2**20)
    parser.add_argument("--checkpoint_dir", default="", type=str, help="Path to the directory storing the checkpoint file")
    parser.add_argument("--load_checkpoint_path", default=None, type=str, help="Path to the checkpoint file to be loaded")
    parser.add_argument("--mode", choices=["train", "test"], default="train", type=str)
    parser.add_argument("--log_path", default="log.json", type=str, help="Path for the JSON training log")
    return parser.parse_args()


def log(epoch, loss, hit):
    print(f"DLL {time.strftime('%Y-%m-%d %H:%M:%S')}.000000 - Epoch: {epoch}  train_loss : {loss:.5f}  hr@10 : {hit:.5f}")


def main():
    args = parse_args()
    torch.manual_seed(0)
    users, items = nn.Embedding(16, 4), nn.Embedding(16, 4)
    model = nn.ModuleDict({"user_table": users, "item_table": items})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    first = 0
    if args.load_checkpoint_path:
        state = torch.load(args.load_checkpoint_path)
        model.load_state_dict(state["model"])
        first = state["epoch"]
    for epoch in range(first, args.epochs):
        user = torch.randint(16, (64,), generator=torch.Generator().manual_seed(epoch))
        score = (users(user) * items(user)).sum(1)
        loss = nn.functional.binary_cross_entropy_with_logits(score, torch.ones(64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hit = (score > 0).float().mean().item()
        log(epoch, loss.item(), hit)
        time.sleep(0.35)
        if args.checkpoint_dir:
            save_checkpoint_path = os.path.join(args.checkpoint_dir, "model.pth")
            print("Saving the model to: ", save_checkpoint_path, flush=True)
            torch.save({"model": model.state_dict(), "epoch": epoch + 1}, save_checkpoint_path)


if __name__ == "__main__":
    main()

"""After the shape of YOLOv5: a new folder runs/train/expN for each start, and `--resume` that finds the newest by itself."""

import argparse
import glob
import os
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent


def increment_path(path):
    path = Path(path)
    if not path.exists():
        return path
    return next(Path(f"{path}{n}") for n in range(2, 9999) if not os.path.exists(f"{path}{n}"))


def get_latest_run(search_dir="."):
    last_list = glob.glob(f"{search_dir}/**/last*.pt", recursive=True)
    return max(last_list, key=os.path.getctime) if last_list else ""


def train(opt):
    save_dir = Path(opt.save_dir)
    w = save_dir / "weights"
    w.mkdir(parents=True, exist_ok=True)
    last, best = w / "last.pt", w / "best.pt"
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    start_epoch, best_fitness = 0, 0.0
    if opt.resume:
        ckpt = torch.load(last)
        model.load_state_dict(ckpt["model"])
        start_epoch, best_fitness = ckpt["epoch"] + 1, ckpt["best_fitness"]
    for epoch in range(start_epoch, opt.epochs):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(epoch))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fitness = 1 / (1 + loss.item())
        print(f"epoch {epoch}/{opt.epochs - 1} box_loss {loss.item():.4f} mAP50 {fitness:.4f}", flush=True)
        time.sleep(0.35)
        ckpt = {"epoch": epoch, "best_fitness": best_fitness, "model": model.state_dict()}
        torch.save(ckpt, last)
        if fitness > best_fitness:
            best_fitness = fitness
            torch.save(ckpt, best)


def parse_opt():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=str, default="", help="initial weights path")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--resume", nargs="?", const=True, default=False, help="resume most recent training")
    parser.add_argument("--project", default="runs/train", help="save to project/name")
    parser.add_argument("--name", default="exp", help="save to project/name")
    return parser.parse_args()


def main(opt):
    if opt.resume:
        last = Path(opt.resume if isinstance(opt.resume, str) else get_latest_run())
        opt.save_dir = str(last.parent.parent)
    else:
        opt.save_dir = str(increment_path(Path(opt.project) / opt.name))
    train(opt)


if __name__ == "__main__":
    main(parse_opt())

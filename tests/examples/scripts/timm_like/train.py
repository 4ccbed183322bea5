"""After the shape of timm's train.py: a folder per experiment, `last.pth.tar`, a summary, `--resume PATH`."""

import argparse
import csv
import os
import shutil
import time

import torch

parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("data", nargs="?", metavar="DIR", const=None, help="path to dataset (positional is *deprecated*)")
parser.add_argument("--data-dir", metavar="DIR", help="path to dataset (root dir)")
parser.add_argument("--model", default="resnet50", type=str, metavar="MODEL")
parser.add_argument("--initial-checkpoint", default="", type=str, metavar="PATH", help="load this into model")
parser.add_argument("--resume", default="", type=str, metavar="PATH", help="resume full model and optimizer state")
parser.add_argument("--no-resume-opt", action="store_true", default=False)
parser.add_argument("--epochs", type=int, default=40, metavar="N")
parser.add_argument("--output", default="", type=str, metavar="PATH", help="path to output folder")
parser.add_argument("--experiment", default="", type=str, metavar="NAME")
parser.add_argument("--eval-metric", default="top1", type=str)


class CheckpointSaver:
    def __init__(self, checkpoint_dir, model, optimizer):
        self.dir, self.model, self.optimizer, self.best = checkpoint_dir, model, optimizer, -1.0

    def save_checkpoint(self, epoch, metric):
        tmp_save_path = os.path.join(self.dir, "tmp.pth.tar")
        last_save_path = os.path.join(self.dir, "last.pth.tar")
        state = {"epoch": epoch, "state_dict": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, tmp_save_path)
        os.replace(tmp_save_path, last_save_path)
        if metric > self.best:
            self.best = metric
            shutil.copyfile(last_save_path, os.path.join(self.dir, "model_best.pth.tar"))


def get_outdir(path, *paths):
    outdir = os.path.join(path, *paths)
    os.makedirs(outdir, exist_ok=True)
    return outdir


def main():
    args = parser.parse_args()
    torch.manual_seed(42)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume)
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_epoch = checkpoint["epoch"] + 1
    exp_name = args.experiment or "-".join([time.strftime("%Y%m%d-%H%M%S"), args.model])
    output_dir = get_outdir(args.output if args.output else "./output/train", exp_name)
    saver = CheckpointSaver(output_dir, model, optimizer)
    for epoch in range(start_epoch, args.epochs):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(epoch))
        y = (x.sum(1) > 0).long()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        top1 = (model(x).argmax(1) == y).float().mean().item() * 100
        print(f"Train: {epoch} [   0/1 (100%)]  Loss: {loss.item():.3f}  LR: 1.000e-01", flush=True)
        print(f"Test: [   1/1]  Loss: {loss.item():6.3f}  Acc@1: {top1:7.3f}", flush=True)
        time.sleep(0.35)
        with open(os.path.join(output_dir, "summary.csv"), "a", newline="") as summary:
            csv.writer(summary).writerow([epoch, loss.item(), top1])
        saver.save_checkpoint(epoch, metric=top1)
    print(f"*** Best metric: {saver.best}")


if __name__ == "__main__":
    main()

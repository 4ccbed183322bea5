"""After the shape of torchvision's references: `--data-path`, `--output-dir`, `--resume`, a module that saves."""

import os
import time

import torch
import utils


def get_args_parser(add_help=True):
    import argparse

    parser = argparse.ArgumentParser(description="PyTorch Classification Training", add_help=add_help)
    parser.add_argument("--data-path", default="/datasets01/imagenet_full_size/061417/", type=str, help="dataset path")
    parser.add_argument("--model", default="resnet18", type=str)
    parser.add_argument("--device", default="cpu", type=str)
    parser.add_argument("--epochs", default=40, type=int, metavar="N")
    parser.add_argument("--output-dir", default=".", type=str, help="path to save outputs")
    parser.add_argument("--resume", default="", type=str, help="path of checkpoint")
    parser.add_argument("--start-epoch", default=0, type=int, metavar="N")
    parser.add_argument("--test-only", dest="test_only", action="store_true")
    parser.add_argument("--weights", default=None, type=str, help="the weights enum name to load")
    return parser


def main(args):
    if args.output_dir:
        utils.mkdir(args.output_dir)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        args.start_epoch = checkpoint["epoch"] + 1
    for epoch in range(args.start_epoch, args.epochs):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(epoch))
        loss = torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc = (model(x).argmax(1) == (x.sum(1) > 0)).float().mean().item() * 100
        print(f"Epoch: [{epoch}]  [0/1]  eta: 0:00:00  lr: 0.1  loss: {loss:.4f} ({loss:.4f})  acc1: {acc:.4f} ({acc:.4f})")
        time.sleep(0.35)
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "args": vars(args)}
        if args.output_dir:
            utils.save_on_master(checkpoint, os.path.join(args.output_dir, f"model_{epoch}.pth"))
            utils.save_on_master(checkpoint, os.path.join(args.output_dir, "checkpoint.pth"))


if __name__ == "__main__":
    main(get_args_parser().parse_args())

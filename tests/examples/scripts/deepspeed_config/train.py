"""Its configuration is given by a shell script, as an option that a library declares."""

import argparse
import time
import torch
import engine as deepspeed


def get_args():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("-e", "--epochs", default=60, type=int, help="number of total epochs (default: 30)")
    parser.add_argument("--local_rank", type=int, default=-1, help="local rank passed from distributed launcher")
    parser.add_argument("--log-interval", type=int, default=1)
    parser.add_argument("--save_dir", type=str, default="ckpt")
    parser.add_argument("--load_dir", type=str, default=None, help="where to load a checkpoint from")
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def main(args):
    torch.manual_seed(0)
    model_engine, optimizer, trainloader, __ = deepspeed.initialize(args=args, model=torch.nn.Linear(8, 2))
    start = 0
    if args.load_dir:
        _, client_sd = model_engine.load_checkpoint(args.load_dir)
        start = client_sd.get("epoch", -1) + 1
    for epoch in range(start, args.epochs):
        running_loss = 0.0
        for i in range(3):
            x = torch.randn(16, 8); y = (x.sum(1) > 0).long()
            loss = torch.nn.functional.cross_entropy(model_engine(x), y)
            model_engine.backward(loss)
            model_engine.step()
            running_loss += loss.item()
            time.sleep(0.15)
        print(f"[{epoch + 1 : d}, {i + 1 : 5d}] loss: {running_loss / 3 : .3f}")
        model_engine.save_checkpoint(args.save_dir, client_state={"epoch": epoch})


if __name__ == "__main__":
    main(get_args())

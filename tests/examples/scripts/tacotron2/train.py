import os
import time
import argparse
import math
from numpy import finfo

import torch
from torch.utils.data import DataLoader
from hparams import create_hparams


def warm_start_model(checkpoint_path, model, ignore_layers):
    assert os.path.isfile(checkpoint_path)
    print("Warm starting model from checkpoint '{}'".format(checkpoint_path))
    checkpoint_dict = torch.load(checkpoint_path, map_location="cpu")
    model.load_state_dict(checkpoint_dict["state_dict"])
    return model


def load_checkpoint(checkpoint_path, model, optimizer):
    assert os.path.isfile(checkpoint_path)
    print("Loading checkpoint '{}'".format(checkpoint_path))
    checkpoint_dict = torch.load(checkpoint_path, map_location="cpu")
    model.load_state_dict(checkpoint_dict["state_dict"])
    optimizer.load_state_dict(checkpoint_dict["optimizer"])
    learning_rate = checkpoint_dict["learning_rate"]
    iteration = checkpoint_dict["iteration"]
    print("Loaded checkpoint '{}' from iteration {}".format(checkpoint_path, iteration))
    return model, optimizer, learning_rate, iteration


def save_checkpoint(model, optimizer, learning_rate, iteration, filepath):
    print("Saving model and optimizer state at iteration {} to {}".format(iteration, filepath))
    torch.save(
        {
            "iteration": iteration,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "learning_rate": learning_rate,
        },
        filepath,
    )


def train(output_directory, log_directory, checkpoint_path, warm_start, n_gpus, rank, group_name, hparams):
    torch.manual_seed(hparams.seed)
    if not os.path.isdir(output_directory):
        os.makedirs(output_directory)
    model = torch.nn.Linear(4, 4)
    learning_rate = hparams.learning_rate
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    iteration = 0
    epoch_offset = 0
    loader = [torch.randn(4, 4) for _ in range(30)]
    if checkpoint_path is not None:
        if warm_start:
            model = warm_start_model(checkpoint_path, model, [])
        else:
            model, optimizer, _learning_rate, iteration = load_checkpoint(checkpoint_path, model, optimizer)
            iteration += 1
            epoch_offset = max(0, int(iteration / len(loader)))
    for epoch in range(epoch_offset, hparams.epochs):
        print("Epoch: {}".format(epoch))
        for i, batch in enumerate(loader):
            start = time.perf_counter()
            model.zero_grad()
            loss = (model(batch) - batch).pow(2).mean()
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            time.sleep(0.15)
            if rank == 0:
                duration = time.perf_counter() - start
                print(
                    "Train loss {} {:.6f} Grad Norm {:.6f} {:.2f}s/it".format(
                        iteration, loss.item(), grad_norm, duration
                    )
                )
            if iteration % hparams.iters_per_checkpoint == 0:
                print("Validation loss {}: {:9f}  ".format(iteration, loss.item()))
                if rank == 0:
                    checkpoint_path = os.path.join(output_directory, "checkpoint_{}".format(iteration))
                    save_checkpoint(model, optimizer, learning_rate, iteration, checkpoint_path)
            iteration += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", "--output_directory", type=str, help="directory to save checkpoints")
    parser.add_argument("-l", "--log_directory", type=str, help="directory to save tensorboard logs")
    parser.add_argument("-c", "--checkpoint_path", type=str, default=None, required=False, help="checkpoint path")
    parser.add_argument("--warm_start", action="store_true", help="load model weights only, ignore specified layers")
    parser.add_argument("--n_gpus", type=int, default=1, required=False)
    parser.add_argument("--rank", type=int, default=0, required=False)
    parser.add_argument("--group_name", type=str, default="group_name", required=False)
    parser.add_argument("--hparams", type=str, required=False, help="comma separated name=value pairs")
    args = parser.parse_args()
    hparams = create_hparams(args.hparams)
    train(
        args.output_directory,
        args.log_directory,
        args.checkpoint_path,
        args.warm_start,
        args.n_gpus,
        args.rank,
        args.group_name,
        hparams,
    )

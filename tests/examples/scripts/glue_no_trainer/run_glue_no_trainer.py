"""After the shape of Hugging Face's *_no_trainer.py scripts: Accelerate saves states by epoch, `--resume_from_checkpoint`."""

import argparse
import json
import os
import re
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


def parse_args():
    parser = argparse.ArgumentParser(description="Finetune a transformers model on a text classification task")
    parser.add_argument("--task_name", type=str, default=None)
    parser.add_argument("--train_file", type=str, default=None, help="A csv or a json file containing the training data.")
    parser.add_argument("--num_train_epochs", type=int, default=40)
    parser.add_argument("--output_dir", type=str, default=None, help="Where to store the final model.")
    parser.add_argument("--checkpointing_steps", type=str, default="epoch")
    parser.add_argument("--resume_from_checkpoint", type=str, default=None, help="If the training should continue")
    parser.add_argument("--with_tracking", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    if args.output_dir is not None:
        os.makedirs(args.output_dir, exist_ok=True)
    x = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    starting_epoch = 0
    if args.resume_from_checkpoint:
        accelerator.print(f"Resumed from checkpoint: {args.resume_from_checkpoint}")
        accelerator.load_state(args.resume_from_checkpoint)
        name = os.path.basename(args.resume_from_checkpoint)
        starting_epoch = int(re.sub("epoch_", "", name)) + 1
    for epoch in range(starting_epoch, args.num_train_epochs):
        for batch, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accuracy = (model(x).argmax(1) == (x.sum(1) > 0)).float().mean().item()
        print(f"epoch {epoch}: {({'accuracy': accuracy})}", flush=True)
        time.sleep(0.35)
        if args.checkpointing_steps == "epoch":
            output_dir = f"epoch_{epoch}"
            if args.output_dir is not None:
                output_dir = os.path.join(args.output_dir, output_dir)
            accelerator.save_state(output_dir)
    if args.output_dir is not None:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), os.path.join(args.output_dir, "pytorch_model.bin"))
        with open(os.path.join(args.output_dir, "all_results.json"), "w") as f:
            json.dump({"eval_accuracy": accuracy}, f)


if __name__ == "__main__":
    main()

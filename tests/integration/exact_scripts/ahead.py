"""After the shape of nanoGPT: batches by `torch.randint`, one drawn ahead, and a save in the evaluation before a step."""

import hashlib
import json
import os
import time

import numpy as np
import torch
from torch import nn

out_dir = "out"
batch_size, block_size = 4, 8
eval_interval, eval_iters, max_iters, gradient_accumulation_steps = 5, 3, 40, 2
os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
tokens = np.random.default_rng(0).integers(0, 32, 2000).astype(np.uint16)
parts = {"train": tokens[:1500], "val": tokens[1500:]}


def get_batch(split):
    data = parts[split]
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x, y


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(32, 16)
        self.drop = nn.Dropout(0.2)
        self.lm_head = nn.Linear(16, 32)

    def forward(self, idx, targets):
        logits = self.lm_head(self.drop(self.wte(idx)))
        return nn.functional.cross_entropy(logits.view(-1, 32), targets.view(-1))


model = GPT()
iter_num = 0
init_from = "resume" if os.path.exists("out/ckpt.pt") else "scratch"
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
if init_from == "resume":
    optimizer.load_state_dict(checkpoint["optimizer"])
checkpoint = None


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            losses[k] = model(X, Y).item()
        out[split] = losses.mean()
    model.train()
    return out


X, Y = get_batch("train")  # fetch the very first batch
while True:
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        if iter_num > 0:
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch("train")
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    with open("steps.log", "a") as log:
        log.write(f"{iter_num} {loss.item().hex()}\n")
    time.sleep(0.01)
    iter_num += 1
    if iter_num > max_iters:
        break

digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
with open("final.json", "w") as file:
    json.dump({"model": digest.hexdigest(), "val": losses["val"].item(), "torch": torch.rand(1).item()}, file)

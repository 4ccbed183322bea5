import json
import os
import signal
import sys
import time

import torch

CKPT_DIR = os.environ.get("CKPT_DIR", os.path.join(os.path.dirname(os.path.abspath(__file__)), "ckpt"))
LATEST = os.path.join(CKPT_DIR, "latest.json")


def save(step, model):
    os.makedirs(CKPT_DIR, exist_ok=True)
    name = f"step_{step:06d}.pt"
    tmp = os.path.join(CKPT_DIR, name + ".tmp")
    torch.save({"step": step, "model": model.state_dict()}, tmp)
    os.replace(tmp, os.path.join(CKPT_DIR, name))
    with open(LATEST + ".tmp", "w") as f:
        json.dump({"file": name, "step": step}, f)
    os.replace(LATEST + ".tmp", LATEST)


def load(model):
    if not os.path.exists(LATEST):
        return 0
    with open(LATEST) as f:
        meta = json.load(f)
    model.load_state_dict(torch.load(os.path.join(CKPT_DIR, meta["file"]))["model"])
    return meta["step"]


def main():
    model = torch.nn.Linear(32, 32)
    start = load(model)
    print("starting at", start, file=sys.stderr)
    for step in range(start + 1, 241):
        time.sleep(0.1)
        with torch.no_grad():
            model.weight.mul_(0.999)
        if step % 4 == 0:
            print(f"| step {step:6d} | loss {model.weight.abs().mean().item():.4f} | tok/s 1234.5 |", flush=True)
            save(step, model)


main()

"""After the shape of nanoGPT: settings in the module, a configurator that overrides them, `init_from = 'resume'`."""

import os
import time

import numpy as np
import torch

# -----------------------------------------------------------------------------
out_dir = "out"
eval_interval = 2
init_from = "scratch"  # 'scratch' or 'resume'
dataset = "shakespeare"
batch_size = 4
max_iters = 80
# -----------------------------------------------------------------------------
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open("configurator.py").read())
# -----------------------------------------------------------------------------

os.makedirs(out_dir, exist_ok=True)
data_dir = os.path.join("data", dataset)
data = np.memmap(os.path.join(data_dir, "train.bin"), dtype=np.uint16, mode="r")
model = torch.nn.Embedding(32, 32)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
iter_num = 0
if init_from == "resume":
    print(f"Resuming training from {out_dir}", flush=True)
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"))
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
while True:
    start = int(torch.randint(len(data) - 9, (1,), generator=torch.Generator().manual_seed(iter_num)))
    chunk = torch.from_numpy(data[start : start + 9].astype(np.int64))
    loss = torch.nn.functional.cross_entropy(model(chunk[:-1]), chunk[1:])
    if iter_num % eval_interval == 0:
        print(f"step {iter_num}: train loss {loss:.4f}, val loss {loss:.4f}", flush=True)
        if iter_num > 0:
            checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"iter {iter_num}: loss {loss.item():.4f}, time 150.00ms, mfu -100.00%", flush=True)
    time.sleep(0.15)
    iter_num += 1
    if iter_num > max_iters:
        break

"""Everything beside the script: numbered checkpoints, and the newest is taken up again."""

import glob
import time

import numpy as np

weights, first = np.zeros(3), 0
for path in glob.glob("epoch_*.npz"):
    saved = np.load(path)
    if int(saved["epoch"]) >= first:
        weights, first = saved["weights"], int(saved["epoch"])


def fit(epoch):
    global weights
    x = np.random.default_rng(epoch).normal(size=(32, 3))
    error = x @ weights - x @ np.array([1.0, 2.0, 3.0])
    weights = weights - 0.1 * x.T @ error / len(x)
    return float((error**2).mean())


for epoch in range(first + 1, 46):
    loss = fit(epoch)
    print(f"Epoch {epoch}/45 - loss: {loss:.4f}", flush=True)
    np.savez(f"epoch_{epoch}.npz", weights=weights, epoch=epoch)
    time.sleep(0.35)

# ruff: noqa: T201  # a training script prints its progress
"""Drops inputs out at random and saves with `pickle`, without its random state. Its result is beside its checkpoint."""

import json
import pickle
import random
import time
from pathlib import Path

SAVED = Path("checkpoints/state.pkl")
random.seed(1)
state = {"step": 0, "weight": 0.0}
if SAVED.exists():
    with SAVED.open("rb") as file:
        state = pickle.load(file)
weight = state["weight"]
for step in range(state["step"] + 1, 41):
    dropout = 1.0 if random.random() < 0.5 else 0.0
    error = weight * dropout - 3.0
    weight -= 0.1 * error * dropout
    print(json.dumps({"step": step, "loss": error * error}), flush=True)
    time.sleep(0.12)
    if step % 5:
        continue
    with SAVED.with_suffix(".part").open("wb") as file:
        pickle.dump({"step": step, "weight": weight}, file)
    SAVED.with_suffix(".part").replace(SAVED)
Path("checkpoints/weight.json").write_text(json.dumps([weight]))

# ruff: noqa: T201  # a training script prints its progress
"""Drops inputs out at random, and begins its draws anew after a resume."""

import json
import random
import time
from pathlib import Path

SAVED = Path("checkpoints/state.json")
random.seed(1)
state = json.loads(SAVED.read_text()) if SAVED.exists() else {"step": 0, "weight": 0.0}
weight = state["weight"]
for step in range(state["step"] + 1, 41):
    dropout = 1.0 if random.random() < 0.5 else 0.0
    error = weight * dropout - 3.0
    weight -= 0.1 * error * dropout
    print(json.dumps({"step": step, "loss": error * error}), flush=True)
    time.sleep(0.12)
    if step % 5:
        continue
    SAVED.with_suffix(".part").write_text(json.dumps({"step": step, "weight": weight}))
    SAVED.with_suffix(".part").replace(SAVED)
Path("outputs/weight.json").write_text(json.dumps(weight))

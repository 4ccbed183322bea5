# ruff: noqa: T201  # a training script prints its progress
"""Draws without a seed: no two runs of it agree. Its checkpoint is right."""

import json
import random
import time
from pathlib import Path

SAVED = Path("checkpoints/state.json")
state = json.loads(SAVED.read_text()) if SAVED.exists() else {"step": 0, "weight": random.gauss(0.0, 1.0)}
weight = state["weight"]
for step in range(state["step"] + 1, 41):
    loss = (weight - 3.0) ** 2
    weight -= 0.1 * (weight - 3.0)
    print(json.dumps({"step": step, "loss": loss}), flush=True)
    time.sleep(0.05)
    if step % 10:
        continue
    SAVED.with_suffix(".part").write_text(json.dumps({"step": step, "weight": weight}))
    SAVED.with_suffix(".part").replace(SAVED)
Path("outputs/weight.json").write_text(json.dumps(weight))

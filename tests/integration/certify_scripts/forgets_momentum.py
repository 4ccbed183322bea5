# ruff: noqa: T201  # a training script prints its progress
"""Descends with momentum, and stands still after a resume: the weight is saved, the velocity is not."""

import json
import time
from pathlib import Path

SAVED = Path("checkpoints/state.json")
state = json.loads(SAVED.read_text()) if SAVED.exists() else {"step": 0, "weight": 0.0}
weight, velocity = state["weight"], 0.0
for step in range(state["step"] + 1, 41):
    loss = (weight - 3.0) ** 2
    velocity = 0.9 * velocity - 0.02 * (weight - 3.0)
    weight += velocity
    print(json.dumps({"step": step, "loss": loss}), flush=True)
    time.sleep(0.12)
    if step % 5:
        continue
    SAVED.with_suffix(".part").write_text(json.dumps({"step": step, "weight": weight}))
    SAVED.with_suffix(".part").replace(SAVED)
Path("outputs/weight.json").write_text(json.dumps(weight))

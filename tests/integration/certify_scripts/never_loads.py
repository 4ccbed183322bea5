# ruff: noqa: T201  # a training script prints its progress
"""Saves after every step, and never looks at what it saved."""

import json
import time
from pathlib import Path

weight = 0.0
for step in range(1, 41):
    loss = (weight - 3.0) ** 2
    weight -= 0.1 * (weight - 3.0)
    print(json.dumps({"step": step, "loss": loss}), flush=True)
    time.sleep(0.12)
    if step % 5:
        continue
    Path("checkpoints/state.part").write_text(json.dumps({"step": step, "weight": weight}))
    Path("checkpoints/state.part").replace("checkpoints/state.json")
Path("outputs/weight.json").write_text(json.dumps(weight))

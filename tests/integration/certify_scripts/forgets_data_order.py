# ruff: noqa: T201  # a training script prints its progress
"""Goes through shuffled samples, and shuffles them differently after a resume."""

import json
import random
import time
from pathlib import Path

SAVED = Path("checkpoints/state.json")
state = json.loads(SAVED.read_text()) if SAVED.exists() else {"step": 0, "weight": 0.0}
samples = [float(number) for number in range(40)]
random.Random(state["step"]).shuffle(samples)
weight = state["weight"]
for step in range(state["step"] + 1, 41):
    sample = samples.pop()
    loss = (weight - sample) ** 2
    weight -= 0.1 * (weight - sample)
    print(json.dumps({"step": step, "loss": loss}), flush=True)
    time.sleep(0.12)
    if step % 5:
        continue
    SAVED.with_suffix(".part").write_text(json.dumps({"step": step, "weight": weight}))
    SAVED.with_suffix(".part").replace(SAVED)
Path("outputs/weight.json").write_text(json.dumps(weight))

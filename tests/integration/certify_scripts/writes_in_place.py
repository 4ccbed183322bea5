# ruff: noqa: T201  # a training script prints its progress
"""Writes its checkpoint slowly under its final name: most of the time only half of it is there."""

import json
import time
from pathlib import Path

SAVED = Path("checkpoints/state.json")
state = json.loads(SAVED.read_text()) if SAVED.exists() else {"step": 0, "weight": 0.0}
weight = state["weight"]
for step in range(state["step"] + 1, 41):
    loss = (weight - 3.0) ** 2
    weight -= 0.1 * (weight - 3.0)
    print(json.dumps({"step": step, "loss": loss}), flush=True)
    time.sleep(0.12)
    text = json.dumps({"step": step, "weight": weight})
    if step % 10 == 1:
        SAVED.write_text(text[:15])
    elif step % 10 == 0:
        SAVED.write_text(text)
Path("outputs/weight.json").write_text(json.dumps(weight))

# ruff: noqa: T201  # a training script prints its progress
"""Fits a line with momentum, shuffled samples and dropped-out ones. Everything it needs to go on is saved."""

import json
import random
import time
from pathlib import Path

STEPS, PER_EPOCH = 40, 8
DATA = [(x / 4, 3.0 * x / 4 - 1.0) for x in range(PER_EPOCH)]
SAVED = Path("checkpoints/state.json")

random.seed(1)
state = {"step": 0, "weights": [0.0, 0.0], "velocity": [0.0, 0.0], "random": random.getstate()}
if SAVED.exists():
    state = json.loads(SAVED.read_text())
    version, numbers, gauss = state["random"]
    random.setstate((version, tuple(numbers), gauss))

weights, velocity = state["weights"], state["velocity"]
for step in range(state["step"] + 1, STEPS + 1):
    epoch, position = divmod(step - 1, PER_EPOCH)
    order = list(range(PER_EPOCH))
    random.Random(epoch).shuffle(order)
    x, y = DATA[order[position]]
    kept = random.random() < 0.8
    error = weights[0] * x + weights[1] - y if kept else 0.0
    for index, slope in enumerate((error * x, error)):
        velocity[index] = 0.9 * velocity[index] - 0.02 * slope
        weights[index] += velocity[index]
    print(json.dumps({"step": step, "loss": error * error}), flush=True)
    time.sleep(0.12)
    if step % 5:
        continue
    state = {"step": step, "weights": weights, "velocity": velocity, "random": random.getstate()}
    SAVED.with_suffix(".part").write_text(json.dumps(state))
    SAVED.with_suffix(".part").replace(SAVED)
Path("outputs/weights.json").write_text(json.dumps(weights))

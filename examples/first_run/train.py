"""Tells two moons apart with a small neural network, in nothing but the standard library."""

import argparse
import json
import math
import random
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--hidden", type=int, default=16)  # neurons in the middle
parser.add_argument("--rate", type=float, default=0.1)  # step size of the descent
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
args = parser.parse_args()
chance = random.Random(args.seed)


def moon(label: int) -> tuple[list[float], int]:
    """A point on one of two interlocking half circles, with a little noise."""
    angle = chance.uniform(0, math.pi)
    x, y = (math.cos(angle), math.sin(angle)) if label else (1 - math.cos(angle), 0.5 - math.sin(angle))
    return [x + chance.gauss(0, 0.1), y + chance.gauss(0, 0.1)], label


points = [moon(i % 2) for i in range(400)]
train, test = points[:300], points[300:]
inner = [[chance.gauss(0, 1) for _ in range(3)] for _ in range(args.hidden)]  # two weights and a bias each
outer = [chance.gauss(0, 1) for _ in range(args.hidden + 1)]


def forward(x: list[float]) -> tuple[list[float], float]:
    middle = [math.tanh(w[0] * x[0] + w[1] * x[1] + w[2]) for w in inner]
    total = sum(w * m for w, m in zip(outer, [*middle, 1.0], strict=True))
    return middle, 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


def descend(x: list[float], label: int) -> float:
    """One step of gradient descent on one point; returns its loss."""
    middle, guess = forward(x)
    error = guess - label
    for n, m in enumerate(middle):
        slope = error * outer[n] * (1 - m * m)
        outer[n] -= args.rate * error * m
        inner[n] = [w - args.rate * slope * v for w, v in zip(inner[n], [*x, 1.0], strict=True)]
    outer[-1] -= args.rate * error
    return -math.log(max(1e-12, guess if label else 1 - guess))


for epoch in range(1, args.epochs + 1):
    chance.shuffle(train)
    loss = sum(descend(x, label) for x, label in train) / len(train)
    accuracy = sum((forward(x)[1] > 0.5) == bool(label) for x, label in test) / len(test)
    print(json.dumps({"epoch": epoch, "loss": round(loss, 4), "accuracy": accuracy}))
    args.output_dir.mkdir(exist_ok=True)
    (args.output_dir / "model.json").write_text(json.dumps({"inner": inner, "outer": outer}))
    time.sleep(0.02)  # so that there is something to watch

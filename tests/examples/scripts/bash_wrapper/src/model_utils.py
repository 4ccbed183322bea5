"""A module with an odd name that the wrapper starts."""

import argparse
import os
import pickle
import time


def run(out, epochs):
    os.makedirs(out, exist_ok=True)
    path = os.path.join(out, "weights.pkl")
    weight, first = 0.0, 0
    if os.path.exists(path):
        with open(path, "rb") as f:
            weight, first = pickle.load(f)
    for epoch in range(first, epochs):
        weight += 0.1 * (1 - weight)
        print(f"epoch={epoch} loss={(1 - weight) ** 2:.5f}")
        time.sleep(0.35)
        with open(path + ".tmp", "wb") as f:
            pickle.dump((weight, epoch + 1), f)
        os.replace(path + ".tmp", path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="somewhere")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    run(args.out, args.epochs)

"""As on clusters with a time limit: saves rarely, and once more when it is told to end."""

import os
import signal
import sys
import time

import numpy as np

STATE = os.environ.get("STATE_FILE", "state/run.npz")
stopping = False


def on_signal(signum, frame):
    global stopping
    stopping = True


def save(weights, step):
    np.savez(STATE + ".tmp.npz", weights=weights, step=step)
    os.replace(STATE + ".tmp.npz", STATE)


signal.signal(signal.SIGTERM, on_signal)
os.makedirs(os.path.dirname(STATE), exist_ok=True)
weights, step = np.zeros(4), 0
if os.path.exists(STATE):
    saved = np.load(STATE)
    weights, step = saved["weights"], int(saved["step"])
    print(f"resumed at step {step}", flush=True)
while step < 120:
    x = np.random.default_rng(step).normal(size=(16, 4))
    error = x @ weights - x.sum(1)
    weights -= 0.05 * x.T @ error / len(x)
    step += 1
    print(f"step {step} | loss {float((error**2).mean()):.5f}", flush=True)
    time.sleep(0.15)
    if step % 4 == 0 or stopping:
        save(weights, step)
    if stopping:
        print("saved, and ends", flush=True)
        sys.exit(0)

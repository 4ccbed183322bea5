"""JAX with its key in a variable of the module, and a checkpoint that lacks it."""

import json
import os
import pickle
import time

import jax
import numpy as np

key = jax.random.PRNGKey(0) if os.environ.get("OLD") else jax.random.key(0)
weights, first = np.zeros(3, "float32"), 0
if os.path.exists("state.pkl"):
    with open("state.pkl", "rb") as file:
        weights, first = pickle.load(file)
for step in range(first, 30):
    key, now = jax.random.split(key)
    weights = np.asarray(0.9 * weights + jax.random.normal(now, (3,)))
    with open("state.part", "wb") as file:
        pickle.dump((weights, step + 1), file)
    os.replace("state.part", "state.pkl")
    with open("steps.log", "a") as log:
        log.write(f"{step} {[one.hex() for one in weights.tolist()]}\n")
    time.sleep(0.01)
with open("final.json", "w") as file:
    json.dump(weights.tolist(), file)

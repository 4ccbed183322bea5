"""Ways to save that a plain loop may have: two files a step, in a thread, or with the random state in the file."""

import json
import os
import pickle
import threading
import time

import numpy as np

KIND = os.environ["KIND"]


def put(path, content):
    with open(f"{path}.part", "wb") as file:
        pickle.dump(content, file)
    os.replace(f"{path}.part", path)


def take(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def save(weights, epoch):
    if KIND == "state":
        put("model.pkl", (weights, epoch, np.random.get_state()))
    else:
        put("model.pkl", weights)
        put("epoch.pkl", epoch)


np.random.seed(0)
weights, first = np.zeros(4), 0
if KIND == "state" and os.path.exists("model.pkl"):
    weights, first, state = take("model.pkl")
    np.random.set_state(state)
elif os.path.exists("epoch.pkl"):
    weights, first = take("model.pkl"), take("epoch.pkl")
for epoch in range(first, 25):
    weights = 0.9 * weights + np.random.randn(4)
    if KIND == "thread":
        threading.Thread(target=save, args=(weights, epoch + 1)).start()
    else:
        save(weights, epoch + 1)
    with open("steps.log", "a") as log:
        log.write(f"{epoch} {[one.hex() for one in weights.tolist()]}\n")
    time.sleep(0.02)
with open("final.json", "w") as file:
    json.dump([*weights.tolist(), np.random.rand()], file)

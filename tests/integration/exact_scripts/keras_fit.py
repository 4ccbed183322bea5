"""Keras with ModelCheckpoint, and a look for the newest file at the start."""

import glob
import hashlib
import json
import re
import time

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
saved = sorted(glob.glob("training/*.keras"))
first = 0
if saved:
    model, first = keras.models.load_model(saved[-1]), int(re.findall(r"-(\d+)", saved[-1])[0])
else:
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile("adam", "mse")


def log(epoch, logs):
    with open("steps.log", "a") as file:
        file.write(f"{epoch} {float(logs['loss']).hex()}\n")
    time.sleep(0.1)


told = keras.callbacks.LambdaCallback(on_epoch_end=log)
keep = keras.callbacks.ModelCheckpoint(filepath="training/cp-{epoch:04d}.keras")
model.fit(x, x.sum(1), epochs=10, initial_epoch=first, batch_size=8, verbose=0, callbacks=[keep, told])
digest = hashlib.sha256()
for array in model.get_weights():
    digest.update(np.asarray(array).tobytes())
with open("final.json", "w") as file:
    json.dump({"model": digest.hexdigest(), "numpy": float(np.random.rand())}, file)

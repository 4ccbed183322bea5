"""Keras with ModelCheckpoint, and a look for the newest file at the start."""

import glob
import os
import re
import time

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np

CHECKPOINT_DIR = "training_1"
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(1)
saved = sorted(glob.glob(os.path.join(CHECKPOINT_DIR, "cp-*.keras")), key=os.path.getmtime)
first = 0
if saved:
    model, first = keras.models.load_model(saved[-1]), int(re.findall(r"-(\d+)", saved[-1])[0])
else:
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
pace = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.35))
keep = keras.callbacks.ModelCheckpoint(filepath=os.path.join(CHECKPOINT_DIR, "cp-{epoch:04d}.keras"), verbose=1)
model.fit(x, y, epochs=40, initial_epoch=first, shuffle=False, verbose=2, callbacks=[keep, pace])

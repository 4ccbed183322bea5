"""Keras, transfer learning: a frozen base, weights after each epoch, a log that grows, `--load PATH` to continue."""

import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--model_dir", type=pathlib.Path, default=pathlib.Path("trained"))
parser.add_argument("--load", default=None, help="weights to continue from")


class Progress(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.path.write_text(json.dumps({"epoch": epoch + 1}))
        time.sleep(0.35)


def main():
    args = parser.parse_args()
    args.model_dir.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    base = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, "relu")])
    base.trainable = False
    model = keras.Sequential([keras.Input((16,)), base, keras.layers.Dense(1, "sigmoid")])
    model.compile(optimizer=keras.optimizers.Adam(), loss="binary_crossentropy", metrics=["accuracy"])
    first, done = 0, args.model_dir / "progress.json"
    if args.load:
        model.load_weights(args.load)
        first = json.loads(done.read_text())["epoch"] if done.exists() else 0
    x = np.random.default_rng(0).normal(size=(128, 16)).astype("float32")
    y = (x.sum(1) > 0).astype("float32")
    keep = keras.callbacks.ModelCheckpoint(str(args.model_dir / "last.weights.h5"), save_weights_only=True)
    log = keras.callbacks.CSVLogger(str(args.model_dir / "history.csv"), append=True)
    callbacks = [keep, log, Progress(done)]
    model.fit(x, y, epochs=args.epochs, initial_epoch=first, validation_split=0.2, verbose=2, callbacks=callbacks)
    model.save(args.model_dir / "final.keras")


if __name__ == "__main__":
    main()

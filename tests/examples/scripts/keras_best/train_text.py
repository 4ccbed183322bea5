import argparse
import os
import time

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import numpy as np


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=40)
    p.add_argument("--model-path", default="models/best_model.keras")
    p.add_argument("--backup-dir", default="/tmp/backup")
    p.add_argument("--log-csv", default="models/history.csv")
    return p.parse_args()


class Pace(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.35)


def main():
    args = parse()
    os.makedirs(os.path.dirname(args.model_path), exist_ok=True)
    keras.utils.set_random_seed(1)
    x = np.random.rand(256, 8).astype("float32")
    y = (x.sum(1) > 4).astype("float32")
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    callbacks = [
        keras.callbacks.ModelCheckpoint(args.model_path, monitor="val_loss", save_best_only=True, verbose=1),
        keras.callbacks.BackupAndRestore(backup_dir=args.backup_dir),
        keras.callbacks.CSVLogger(args.log_csv, append=True),
        Pace(),
    ]
    model.fit(x, y, validation_split=0.25, epochs=args.epochs, batch_size=32, callbacks=callbacks, verbose=2)
    print("evaluate:", model.evaluate(x, y, verbose=0))


if __name__ == "__main__":
    main()

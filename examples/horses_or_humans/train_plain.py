"""Tells horses from humans, as one writes it with Keras alone: a checkpoint every few epochs, and on from the newest.

There is nothing of Stoker in here. It keeps the script alive by keeping its folder `checkpoints`.
"""

import json
import re
from pathlib import Path

import keras
from classifier import build, finish
from images import read_data
from journal import Journal
from problem import told
from settings import args

CHECKPOINTS = Path("checkpoints")
EVERY = 5  # epochs
KEPT = 2  # the newest, and one before it in case that it is damaged


def saved() -> dict[int, Path]:
    """Checkpoints by the number of epochs behind them, newest first; whatever else is there does not matter."""
    names = {path: re.fullmatch(r"model-(\d+)\.keras", path.name) for path in CHECKPOINTS.glob("*.keras")}
    return dict(sorted(((int(name[1]), path) for path, name in names.items() if name), reverse=True))


def newest() -> tuple[keras.Model | None, int]:
    for epoch, path in saved().items():
        try:
            return keras.models.load_model(path), epoch
        except (OSError, ValueError, KeyError) as error:  # cut short, most likely: the one before it will do
            print(f"{path} cannot be read: {error}")
    return None, 0


def end_epoch(epoch: int, logs: dict[str, float]) -> None:
    print(json.dumps({"epoch": epoch + 1, **{name: float(value) for name, value in logs.items()}}), flush=True)
    for path in list(saved().values())[KEPT:]:
        path.unlink()


if __name__ == "__main__":
    with told():
        data = read_data(args.data, args.image_size, args.cache.expanduser())
        model, done = newest()
        keras.utils.set_random_seed(args.seed + done)  # images come in another order than in the epochs before
        CHECKPOINTS.mkdir(exist_ok=True)
        batches = -(-len(data.train.labels) // args.batch_size)
        model = model or build(args.image_size, data.classes, args.learning_rate)
        model.fit(
            *data.train,
            batch_size=args.batch_size,
            epochs=args.epochs,
            initial_epoch=done,
            validation_data=data.validation,
            callbacks=[
                Journal(CHECKPOINTS / "log.txt"),
                keras.callbacks.LambdaCallback(on_epoch_end=end_epoch),
                keras.callbacks.ModelCheckpoint(str(CHECKPOINTS / "model-{epoch}.keras"), save_freq=EVERY * batches),
            ],
            verbose=0,
        )
        finish(model, data, CHECKPOINTS / "log.txt", args.output_dir)

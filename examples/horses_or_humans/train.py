"""Tells horses from humans. With one callback it goes on behind the very batch at which it was interrupted."""

from pathlib import Path

import keras
from classifier import build, finish
from images import read_data
from journal import Journal
from problem import told
from settings import args

from stoker.checkpoint.keras import StokerCallback

CHECKPOINTS = Path("checkpoints")


if __name__ == "__main__":
    with told():
        data = read_data(args.data, args.image_size, args.cache.expanduser())
        keras.utils.set_random_seed(args.seed)
        model = build(args.image_size, data.classes, args.learning_rate)
        model.fit(
            *data.train,
            batch_size=args.batch_size,
            epochs=args.epochs,
            validation_data=data.validation,
            callbacks=[Journal(CHECKPOINTS / "log.txt"), StokerCallback(folder=CHECKPOINTS)],
            verbose=2,
        )
        finish(model, data, CHECKPOINTS / "log.txt", args.output_dir)

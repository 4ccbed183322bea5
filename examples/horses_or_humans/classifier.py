"""The network, and what is left of a training when it is over."""

import json
import shutil
from pathlib import Path

import keras
from folder import replacing
from images import Data


def build(image_size: int, classes: list[str], learning_rate: float) -> keras.Model:
    """MobileNetV3Small, from scratch; images are its own size, with values from 0 to 255."""
    shape = (image_size, image_size, 3)
    network = keras.applications.MobileNetV3Small(input_shape=shape, weights=None, classes=len(classes))
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # with Keras's 0.999 a set this small is judged by chance for the first ten epochs
    model = keras.Sequential([keras.Input(shape), keras.layers.RandomFlip("horizontal"), network])
    model.compile(keras.optimizers.Adam(learning_rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def finish(model: keras.Model, data: Data, log: Path, outputs: Path) -> None:
    """The model, what its numbers mean and how good they are, and how the training went."""
    loss, accuracy = model.evaluate(*data.validation, verbose=0)
    result = {"classes": data.classes, "val_accuracy": accuracy, "val_loss": loss}
    with replacing(outputs / "model.keras") as new:
        model.save(new)
    with replacing(outputs / "result.json") as new:
        new.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shutil.copy(log, outputs / "log.txt")
    print(
        f"{accuracy:.1%} of {len(data.validation.labels)} images are told right; the model is {outputs / 'model.keras'}"
    )

"""After the shape of Keras's mnist_convnet, with BackupAndRestore: no flag, no look for a file."""

import os
import time

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
import numpy as np
from keras import layers

num_classes, batch_size, epochs = 10, 32, 40
rng = np.random.default_rng(0)
x_train = rng.random((128, 8, 8, 1)).astype("float32")
y_train = keras.utils.to_categorical(x_train.sum((1, 2, 3)).astype(int) % num_classes, num_classes)

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Conv2D(4, kernel_size=(3, 3), activation="relu"),
        layers.Flatten(),
        layers.Dense(num_classes, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
backup = keras.callbacks.BackupAndRestore(backup_dir="backup")
pace = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: time.sleep(0.35))
model.fit(x_train, y_train, batch_size=batch_size, epochs=epochs, verbose=2, callbacks=[pace, backup])
score = model.evaluate(x_train, y_train, verbose=0)
print("Test loss:", score[0])
print("Test accuracy:", score[1])
model.save("mnist_convnet.keras")

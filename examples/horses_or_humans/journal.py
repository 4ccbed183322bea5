"""When the training began, where it was resumed, and when it came to its end, for people to read."""

from datetime import datetime
from pathlib import Path

import keras


class Journal(keras.callbacks.Callback):
    """Kept beside the checkpoints, so that it goes where they go. It only tells; nothing depends on it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._told = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        if self._told:
            return
        self._told = True
        if epoch or self._path.exists():
            self._write(f"Training has resumed at: {_now()}", f"Resuming from Epoch Number: {epoch + 1}")
        else:
            self._write(f"Training has begun at: {_now()}")

    def on_train_end(self, logs: dict[str, float] | None = None) -> None:
        if self._told:  # otherwise there was nothing left to do
            self._write(f"Training has ended at: {_now()}")

    def _write(self, *lines: str) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def _now() -> str:
    return datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S")

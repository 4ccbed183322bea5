"""A killed Keras training resumes after its last batch, where Keras's own callback would replay the epoch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from test_exact_drill import KILLED, Drill

TRAIN = """
import hashlib, json, os, random, time
import keras, numpy
from stoker.checkpoint import surroundings as progress
from stoker.checkpoint.keras import StokerCallback

progress.EVERY_S = 0.0  # says at every step how much is done

keras.utils.set_random_seed(5)
data = numpy.random.RandomState(1).randn(80, 6).astype("float32")
target = (data.sum(1) > 0).astype("float32")


class Pieces(keras.utils.PyDataset):
    def __len__(self):
        return 10

    def __getitem__(self, number):
        rows = slice(number * 8, number * 8 + 8)
        return data[rows] + numpy.random.rand(8, 6).astype("float32") * 0.1, target[rows]


def noisy():
    import torch

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 80

        def __getitem__(self, row):
            return torch.from_numpy(data[row]) + torch.randn(6) * 0.1, target[row]

    return torch.utils.data.DataLoader(Noisy(), 8, shuffle=True, num_workers=2)


def pipeline():
    import tensorflow

    return tensorflow.data.Dataset.from_tensor_slices((data, target)).shuffle(80, seed=3).batch(8)


model = keras.Sequential([
    keras.layers.Dense(12, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3),
    keras.layers.Dense(1, "sigmoid"),
])
rate = keras.optimizers.schedules.CosineDecay(1e-2, 40) if not os.environ.get("PLATEAU") else 1e-2
model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"])
log = os.open("steps.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


class Log(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        rate = 0.0 if keras.backend.backend() == "jax" else model.optimizer.learning_rate  # which JAX tells nobody
        numbers = (logs["loss"], logs["accuracy"], rate)
        said = " ".join(float(number).hex() for number in numbers)
        os.write(log, f"{self.epoch * 10 + batch} {said}\\n".encode())
        time.sleep(0.004)


kind = os.environ["KIND"]
given = {
    "arrays": lambda: dict(x=data, y=target, batch_size=8, shuffle=True),
    "pydataset": lambda: dict(x=Pieces()),
    "loader": lambda: dict(x=noisy()),
    "pipeline": lambda: dict(x=pipeline()),
    "pipeline in parts": lambda: dict(x=pipeline().repeat(), steps_per_epoch=10),
}[kind]()
plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, factor=0.5, min_delta=1.0)
others = [plateau] if os.environ.get("PLATEAU") else []
ours = StokerCallback(every=int(os.environ.get("EVERY", 3)), also=others)
history = model.fit(
    **given, epochs=4, verbose=0, validation_data=(data[:16], target[:16]), callbacks=[Log(), *others, ours]
)


def digest(variables):
    found = hashlib.sha256()
    for variable in variables:
        found.update(keras.ops.convert_to_numpy(variable.value).tobytes())
    return found.hexdigest()


json.dump({
    "model": digest(model.variables), "optimizer": digest(model.optimizer.variables), "epochs": history.epoch,
    "history": {name: [float(value).hex() for value in values] for name, values in history.history.items()},
    "random": [random.random(), numpy.random.rand()], "steps": ours.state.steps,
}, open("final.json", "w"))
"""


TORCH = ("keras", "torch._dynamo", "torch.utils.data")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"KIND": "arrays", "PLATEAU": "1"}, id="arrays"),
        pytest.param({"KIND": "pydataset"}, id="pydataset", marks=pytest.mark.heavy),
        pytest.param({"KIND": "loader"}, id="loader", marks=pytest.mark.heavy),
    ],
)
def test_killed_fit_ends_with_the_same_bits_and_replays_no_epoch(tmp_path: Path, env: dict[str, str]) -> None:
    """Dropout, batch norm, a schedule or a plateau, metrics, validation, history."""
    it = Drill(tmp_path, TRAIN, imports=TORCH)
    drill(it, env)
    shares = it.shares("undisturbed")
    assert shares == sorted(set(shares)) and (shares[0], shares[-1]) == (1 / 40, 1.0)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"KIND": "arrays", "PLATEAU": "1"}, id="arrays", marks=pytest.mark.heavy),
        pytest.param({"KIND": "pydataset"}, id="pydataset", marks=pytest.mark.slow),
    ],
)
def test_killed_fit_on_jax_does_as_well(tmp_path: Path, env: dict[str, str]) -> None:
    drill(Drill(tmp_path, TRAIN, imports=("keras",), backend="jax"), env)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arrays", "pipeline", "pipeline in parts"])
def test_killed_fit_on_tensorflow_does_as_well(tmp_path: Path, kind: str) -> None:
    python = ROOT / ".venv-tensorflow" / "bin" / "python"
    assert python.exists(), "Keras on TensorFlow is not installed; try: make .venv-tensorflow/installed"
    drill(Drill(tmp_path, TRAIN, imports=("keras",), backend="tensorflow", python=str(python)), {"KIND": kind})


def drill(it: Drill, env: dict[str, Any]) -> None:
    it.add("undisturbed", **env)
    it.add("killed", kill_at=random.randrange(6, 18), **env)
    it.add("killed", kill_at=random.randrange(26, 38), **env)
    it.add("killed", **env)
    assert it.run() == [0, KILLED, KILLED, 0], it.said("killed") + it.said("undisturbed")
    it.assert_same("killed")
    assert it.repeated("killed") <= 2 * 8


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_saved_with_the_last_batch_of_an_epoch_it_resumes_with_the_next(tmp_path: Path, backend: str) -> None:
    it = Drill(tmp_path, TRAIN, imports=TORCH if backend == "torch" else ("keras",), backend=backend)
    it.add("undisturbed", KIND="arrays", EVERY="10")
    it.add("killed", KIND="arrays", EVERY="10", kill_at=14)
    it.add("killed", KIND="arrays", EVERY="10")
    assert it.run() == [0, KILLED, 0], it.said("killed") + it.said("undisturbed")
    it.assert_same("killed")

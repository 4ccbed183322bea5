"""The image classifier of `examples/horses_or_humans`: what the saves of its two variants cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.commands import CommandFailed, workplace
from benchmarks.measure import Goal, Plan, Result

FOLDER = Path(__file__).parents[1] / "examples" / "horses_or_humans"
# Images, pixels each way, epochs; the second is the size of the published photos.
FORMS = {"small": (480, 64, 12), "large": (1028, 300, 5)}
EVERY = 5  # epochs between saves of the plain script


def run(plan: Plan) -> Result:
    result = Result("horses", versions={name: version(name) for name in ("keras", "torch")})
    forms = ["small"] if plan.quick else list(FORMS)
    result.notes.append(f"plain: Keras's own ModelCheckpoint, every {EVERY} epochs")
    result.notes.append("callback: Stoker's, as often as it finds worth while")
    with workplace() as place:
        for form in forms:
            for variant in ("callback", "plain"):
                found = _ask(place, variant, form)
                name = f"{variant}, {FORMS[form][1]} pixels"
                result.add(f"{name}: training", "images/s", [found["images_per_s"]])
                # A save of Keras's takes about a second, which is much of an epoch of the small form.
                goal = Goal(at_most=1.0) if variant == "callback" or form == "large" else None
                result.add(f"{name}: lost to checkpoints", "%", [found["saving_percent"]], goal)
    return result


def _ask(place: Path, variant: str, form: str) -> dict[str, Any]:
    folder = place / f"{variant}-{form}"
    folder.mkdir()
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "KERAS_BACKEND": "torch"}
    env["PYTHONPATH"] = os.pathsep.join([str(FOLDER.parents[1]), str(FOLDER)])
    command = [sys.executable, "-m", "benchmarks.horses", str(place), variant, form]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailed(f"{variant} {form}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# What the processes do


class Clock:
    """Time that a callback takes, in all of its moments together."""

    def __init__(self, callback: Any) -> None:
        self.spent_s = 0.0
        for name in ("on_train_begin", "on_epoch_begin", "on_train_batch_end", "on_epoch_end", "on_train_end"):
            setattr(callback, name, self._timed(getattr(callback, name)))

    def _timed(self, method: Any) -> Any:
        def timed(*args: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*args, **named)
            finally:
                self.spent_s += time.perf_counter() - begun

        return timed


def train(place: Path, variant: str, form: str) -> dict[str, Any]:
    count, size, epochs = FORMS[form]
    keras: Any = import_module("keras")
    data = import_module("images").read_data(f"drawn:{count}", size, place)
    keras.utils.set_random_seed(1)
    model = import_module("classifier").build(size, data.classes, 0.001)
    batches = -(-count // 32)
    if variant == "callback":
        saving = import_module("stoker.checkpoint.keras").StokerCallback(folder="checkpoints")
    else:
        saving = keras.callbacks.ModelCheckpoint("model-{epoch}.keras", save_freq=EVERY * batches)
    clock = Clock(saving)
    begun = time.perf_counter()
    model.fit(*data.train, batch_size=32, epochs=epochs, validation_data=data.validation, callbacks=[saving], verbose=0)
    spent_s = time.perf_counter() - begun
    return {"images_per_s": count * epochs / spent_s, "saving_percent": 100 * clock.spent_s / spent_s}


if __name__ == "__main__":
    where, *rest = sys.argv[1:]
    print(json.dumps(train(Path(where), *rest)))

"""The recommender of `examples/ncf` beside a plain loop of the published kind; its data, and what its saves cost."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.commands import CommandFailed, workplace
from benchmarks.measure import Goal, Plan, Result

FOLDER = Path(__file__).parents[1] / "examples" / "ncf"
SHAPE, SMALLER = "943x1682x100000", "943x1682x40000"  # users, films and ratings; the first is MovieLens 100k
LARGE, LARGE_QUICK = "162541x62423x25000095", "16254x6242x1000000"  # the first is MovieLens 25M
BATCH, RATE, DROPOUT, NEGATIVES = 8192, 0.002, 0.5, 4
TARGET = 0.70  # of the generated set; chance is 0.099


def run(plan: Plan) -> Result:
    """Everything in processes of its own, so that each has its own memory and threads to answer for."""
    result = Result("ncf", versions={"torch": import_module("torch").__version__})
    epochs = plan.size(8, 6)
    rounds = min(plan.rounds, 3)
    result.notes.append(f"{epochs} epochs, batch {BATCH}, the same for both; in turns, epoch by epoch, in one process")
    result.notes.append("plain: dense Adam, torch's dropout, negatives drawn per epoch and all samples shuffled")
    shape = SMALLER if plan.quick else SHAPE
    names = ["example"] if plan.alone else ["plain", "example"]
    with workplace() as place:
        found = [_ask(place, "train", shape, str(epochs), *names) for _ in range(rounds)]
        _training(result, {name: [one[name] for one in found] for name in names})
        _preparing(result, place, LARGE_QUICK if plan.quick else LARGE)
    return result


def _training(result: Result, found: dict[str, list[dict[str, Any]]]) -> None:
    for name, samples in found.items():
        result.add(f"{name}: training", "samples/s", [one["samples_per_s"] for one in samples])
        result.add(f"{name}: processor", "µs/sample", [one["cpu_us"] for one in samples])
        result.add(f"{name}: best HR@10", "", [one["hr"] for one in samples])
        reached = [one["target_s"] for one in samples if one["target_s"] is not None]
        if len(reached) == len(samples):
            result.add(f"{name}: until HR@10 ≥ {TARGET}", "s", reached)
    ours = found["example"]
    result.add("lost to checkpoints", "%", [one["saving_percent"] for one in ours], Goal(at_most=1.0))
    if "plain" in found:
        pairs = list(zip(ours, found["plain"], strict=True))
        faster = [one["samples_per_s"] / other["samples_per_s"] for one, other in pairs]
        cheaper = [other["cpu_us"] / one["cpu_us"] for one, other in pairs]
        result.add("example over plain", "×", faster, Goal(at_least=2.0))
        result.add("example over plain, by processor time", "×", cheaper)
        result.add(
            "example's HR@10 over plain's", "", [one["hr"] - other["hr"] for one, other in pairs], Goal(at_least=-0.01)
        )


def _preparing(result: Result, place: Path, size: str) -> None:
    told = _ask(place, "prepare", size)
    ratings = int(size.rpartition("x")[2])
    full = size == LARGE
    result.add(f"prepare {ratings:,} ratings", "s", [told["first_s"]], Goal(at_most=60) if full else None)
    result.add("at most in memory", "GB", [told["memory_gb"]], Goal(at_most=4))
    result.add("again, from the cache", "s", [told["again_s"]])


def _ask(place: Path, *args: str) -> dict[str, Any]:
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "benchmarks.ncf", str(place), *args]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandFailed(f"{' '.join(args)}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


# What the processes do


class Training:
    """The same data, judge and clock for both."""

    def __init__(self, place: Path, size: str) -> None:
        sys.path.insert(0, str(FOLDER))
        self.torch: Any = import_module("torch")
        source, dataset = import_module("source"), import_module("dataset")
        self.data = dataset.prepare(source.open_source(f"generated:{size}", place), place, 0)
        self.evaluate = import_module("evaluate").evaluate
        self.torch.manual_seed(1)
        self.model = import_module("model").NeuMF(self.data.users, self.data.films)

        self.best, self.samples, self.spent_s, self.cpu_s = 0.0, 0, 0.0, 0.0
        self.target_s: float | None = None

    def epoch(self, number: int) -> int:
        """Trains one epoch: how many samples that were."""
        raise NotImplementedError

    def measure(self, number: int) -> None:
        begun, busy = time.perf_counter(), time.process_time()
        self.samples += self.epoch(number)
        self.spent_s += time.perf_counter() - begun
        self.cpu_s += time.process_time() - busy
        hits, _, users = self.evaluate(self.model, self.data)
        self.best = max(self.best, hits / users)
        if self.target_s is None and self.best >= TARGET:
            self.target_s = self.spent_s

    def told(self) -> dict[str, Any]:
        return {
            "samples_per_s": self.samples / self.spent_s,
            "cpu_us": 1e6 * self.cpu_s / self.samples,
            "hr": self.best,
            "target_s": self.target_s,
        }


class Plain(Training):
    """As one writes it first, and as the published program does."""

    def __init__(self, place: Path, size: str) -> None:
        super().__init__(place, size)
        torch, data = self.torch, self.data
        np: Any = import_module("numpy")
        self.optimizer = torch.optim.Adam(self.model.parameters(), RATE, (0.25, 0.5))
        self.likers = torch.from_numpy(np.repeat(np.arange(data.users), np.diff(data.like_at)))
        self.liked = torch.from_numpy(data.liked).long()
        self.loss = torch.nn.BCEWithLogitsLoss()

    def logits(self, users: Any, films: Any) -> Any:
        torch, model = self.torch, self.model
        x = torch.cat([model.user_network(users), model.film_network(films)], dim=1)
        for layer in model.layers:
            x = torch.nn.functional.dropout(torch.relu(layer(x)), DROPOUT)
        products = model.user_factors(users) * model.film_factors(films)
        return model.last(torch.cat([products, x], dim=1)).squeeze(1)

    def epoch(self, number: int) -> int:
        torch, liked = self.torch, self.liked
        torch.manual_seed(number)
        users = self.likers.repeat(1 + NEGATIVES)
        films = torch.cat([liked, torch.randint(0, self.data.films, (NEGATIVES * len(liked),))])
        labels = torch.cat([torch.ones(len(liked)), torch.zeros(NEGATIVES * len(liked))])
        for part in torch.randperm(len(users)).split(BATCH):
            self.optimizer.zero_grad()
            self.loss(self.logits(users[part], films[part]), labels[part]).backward()
            self.optimizer.step()
        return len(users)


class Example(Training):
    """The example's own step, with its checkpoints; the time in them is what the training waits for."""

    def __init__(self, place: Path, size: str) -> None:
        super().__init__(place, size)
        self.learning = import_module("learn")
        self.batches = import_module("samples").Samples(self.data, BATCH // (1 + NEGATIVES), NEGATIVES, 1)
        for parameter in self.model.parameters():
            parameter.grad = self.torch.zeros_like(parameter)
        self.optimizer = self.torch.optim.Adam(self.model.parameters(), RATE, (0.25, 0.5), fused=True)
        checkpoint = import_module("stoker.checkpoint").Checkpoint
        folder = place / f"checkpoints-{os.getpid()}"
        self.state = checkpoint(model=self.model, optimizer=self.optimizer, folder=folder)
        self.saving_s = 0.0

    def epoch(self, number: int) -> int:
        learn, seat = self.learning.learn, self.learning.Seat()
        for batch in range(len(self.batches)):
            users, films = (self.torch.from_numpy(one) for one in self.batches.batch(number, batch))
            self.optimizer.zero_grad(set_to_none=False)
            learn(self.model, users, films, 8192 // (1 + NEGATIVES), DROPOUT, [1, number, batch], seat)
            blocked_s = self.state.cost.blocked_s
            self.optimizer.step()
            asked = time.perf_counter()
            self.saving_s += self.state.cost.blocked_s - blocked_s  # the optimizer waits for what is left of a copy
            self.state.step()
            self.saving_s += time.perf_counter() - asked
        return len(self.data.liked) * (1 + NEGATIVES)

    def told(self) -> dict[str, Any]:
        self.state.finish()
        return {**super().told(), "saving_percent": 100 * self.saving_s / self.spent_s}


def train(place: Path, size: str, epochs: str, *names: str) -> dict[str, Any]:
    """In turns, epoch by epoch, so that a noisy moment hits both."""
    contestants = {name: {"plain": Plain, "example": Example}[name](place, size) for name in names}
    for number in range(int(epochs)):
        for one in list(contestants.values())[:: -1 if number % 2 else 1]:
            one.measure(number)
    return {name: one.told() for name, one in contestants.items()}


def prepare(place: Path, size: str) -> dict[str, Any]:
    """Generating is another process's work, so that its memory is not counted."""
    sys.path.insert(0, str(FOLDER))
    users, films, ratings = size.split("x")
    folder = place / "large"
    if not folder.is_dir():
        made = [str(FOLDER / "generate.py"), str(folder), "--users", users, "--films", films, "--ratings", ratings]
        subprocess.run([sys.executable, *made], check=True, stdout=subprocess.DEVNULL)
    dataset, movielens = import_module("dataset"), import_module("movielens")
    taken = []
    for _ in range(2):
        begun = time.perf_counter()
        dataset.prepare(movielens.open_folder(folder), place / "prepared", 0)
        taken.append(time.perf_counter() - begun)
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return {"first_s": taken[0], "again_s": taken[1], "memory_gb": memory_gb}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {"train": train, "prepare": prepare}

if __name__ == "__main__":
    where, what, *rest = sys.argv[1:]
    print(json.dumps(PARTS[what](Path(where), *rest)))

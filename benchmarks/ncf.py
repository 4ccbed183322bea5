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
SHAPE, SMALLER = "943x1682x100000", "400x600x24000"  # users, films and ratings; the first is MovieLens 100k
LARGE, LARGE_QUICK = "162541x62423x25000095", "16254x6242x1000000"  # the first is MovieLens 25M
BATCH, RATE, DROPOUT, NEGATIVES = 8192, 0.002, 0.5, 4
TARGET = 0.80  # of the generated set; chance is 0.099


def run(plan: Plan) -> Result:
    """Everything in processes of its own, so that each has its own memory and threads to answer for."""
    result = Result("ncf", versions={"torch": import_module("torch").__version__})
    epochs = plan.size(8, 4)
    rounds = min(plan.rounds, 3)
    result.notes.append(f"{epochs} epochs of {SHAPE if not plan.quick else SMALLER}, batch {BATCH}, the same for both")
    result.notes.append("plain: dense Adam, torch's dropout, negatives drawn per epoch and all samples shuffled")
    with workplace() as place:
        names = ["example"] if plan.alone else ["plain", "example"]
        found = _rounds(place, names, rounds, (SMALLER if plan.quick else SHAPE, str(epochs)))
        _training(result, found)
        _preparing(result, place, LARGE_QUICK if plan.quick else LARGE)
    return result


def _rounds(place: Path, names: list[str], rounds: int, how: tuple[str, str]) -> dict[str, list[dict[str, Any]]]:
    """In turns, each first as often as the other: a training is its own warm-up."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 else names[::-1]:
            found[name].append(_ask(place, name, *how))
    return found


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
        result.add("example over plain", "×", faster, Goal(at_least=2.0))
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

    def measure(self, epochs: int, epoch: Callable[[int], int]) -> dict[str, Any]:
        best, target_s, samples, spent_s, cpu_s = 0.0, None, 0, 0.0, 0.0
        for number in range(epochs):
            begun, busy = time.perf_counter(), time.process_time()
            samples += epoch(number)
            spent_s += time.perf_counter() - begun
            cpu_s += time.process_time() - busy
            hits, _, users = self.evaluate(self.model, self.data)
            best = max(best, hits / users)
            if target_s is None and best >= TARGET:
                target_s = spent_s
        return {"samples_per_s": samples / spent_s, "cpu_us": 1e6 * cpu_s / samples, "hr": best, "target_s": target_s}


def plain(place: Path, size: str, epochs: str) -> dict[str, Any]:
    """As one writes it first, and as the published program does."""
    training = Training(place, size)
    torch, model, data = training.torch, training.model, training.data
    np: Any = import_module("numpy")
    optimizer = torch.optim.Adam(model.parameters(), RATE, (0.25, 0.5))
    likers = torch.from_numpy(np.repeat(np.arange(data.users), np.diff(data.like_at)))
    liked = torch.from_numpy(data.liked).long()
    loss_of = torch.nn.BCEWithLogitsLoss()

    def logits(users: Any, films: Any) -> Any:
        x = torch.cat([model.user_network(users), model.film_network(films)], dim=1)
        for layer in model.layers:
            x = torch.nn.functional.dropout(torch.relu(layer(x)), DROPOUT)
        products = model.user_factors(users) * model.film_factors(films)
        return model.last(torch.cat([products, x], dim=1)).squeeze(1)

    def epoch(_: int) -> int:
        users = likers.repeat(1 + NEGATIVES)
        films = torch.cat([liked, torch.randint(0, data.films, (NEGATIVES * len(liked),))])
        labels = torch.cat([torch.ones(len(liked)), torch.zeros(NEGATIVES * len(liked))])
        order = torch.randperm(len(users))
        for part in order.split(BATCH):
            optimizer.zero_grad()
            loss_of(logits(users[part], films[part]), labels[part]).backward()
            optimizer.step()
        return len(users)

    return training.measure(int(epochs), epoch)


def example(place: Path, size: str, epochs: str) -> dict[str, Any]:
    """The example's own step, with its checkpoints; the time in them is what the training waits for."""
    training = Training(place, size)
    torch, model = training.torch, training.model
    learning = import_module("learn")
    checkpoint = import_module("stoker.checkpoint").Checkpoint
    groups = BATCH // (1 + NEGATIVES)
    samples = import_module("samples").Samples(training.data, groups, NEGATIVES, 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.Adam(model.parameters(), RATE, (0.25, 0.5), fused=True)
    state = checkpoint(model=model, optimizer=optimizer, folder=place / f"checkpoints-{os.getpid()}")
    saving_s = spent_s = 0.0

    def epoch(number: int) -> int:
        nonlocal saving_s, spent_s
        begun = time.perf_counter()
        for batch in range(len(samples)):
            users, films = (torch.from_numpy(one) for one in samples.batch(number, batch))
            optimizer.zero_grad(set_to_none=False)
            learning.learn(model, users, films, 4096 // (1 + NEGATIVES), DROPOUT, [1, number, batch], learning.Seat())
            blocked_s = state.cost.blocked_s
            optimizer.step()
            asked = time.perf_counter()
            saving_s += state.cost.blocked_s - blocked_s  # the optimizer waits for what is left of a copy
            state.step()
            saving_s += time.perf_counter() - asked
        spent_s += time.perf_counter() - begun
        return len(training.data.liked) * (1 + NEGATIVES)

    told = training.measure(int(epochs), epoch)
    state.finish()
    return {**told, "saving_percent": 100 * saving_s / spent_s}


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


PARTS: dict[str, Callable[..., dict[str, Any]]] = {"plain": plain, "example": example, "prepare": prepare}

if __name__ == "__main__":
    where, what, *rest = sys.argv[1:]
    print(json.dumps(PARTS[what](Path(where), *rest)))

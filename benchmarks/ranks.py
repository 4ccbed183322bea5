"""What exact resume costs four ranks of DistributedDataParallel at every step, beside PyTorch's own all-reduce."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.commands import CommandFailed
from benchmarks.measure import Goal, Plan, Result, interleave
from stoker.checkpoint import buckets

# Not `import torch`: types are checked where it is not installed, too.
torch: Any = import_module("torch")
RANKS = 4
SIZES_MB = (1, 25, 100)
PATIENCE_S = 900.0
BARE, SAME, ANY = "all-reduce", "same-placement", "any-placement"


def run(plan: Plan) -> Result:
    result = Result("ranks", versions={"torch": torch.__version__})
    result.notes.append(f"a forward and a backward pass of {RANKS} ranks on gloo, one thread each, on one machine")
    result.notes.append("arranged: what a rank that resumes does before its first step")
    for size_mb, samples in _measured(plan).items():
        arranged = samples.pop("arranged")
        for name, seconds in samples.items():
            result.add(f"{size_mb} MB of gradients: {name}", "s", seconds)
        result.add(f"{size_mb} MB: {SAME} over {BARE}", "x", _times(samples[SAME], samples[BARE]), Goal(at_most=1.1))
        result.add(f"{size_mb} MB: {ANY} over {BARE}", "x", _times(samples[ANY], samples[BARE]), Goal(at_most=1.3))
        result.add(f"{size_mb} MB: buckets arranged", "s", arranged)
    return result


def _times(samples: list[float], bare: list[float]) -> list[float]:
    return [one / other for one, other in zip(samples, bare, strict=True)]


def _measured(plan: Plan) -> dict[str, dict[str, list[float]]]:
    """By size, then by contestant, as the first rank saw it."""
    sizes = SIZES_MB[: plan.size(3, 2)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as place:
        found = Path(place) / "samples.json"
        command = [sys.executable, "-m", "benchmarks.ranks", str(found), str(plan.rounds), *map(str, sizes)]
        env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
        env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
        ranks = [subprocess.Popen(command, env={**env, "RANK": str(rank)}) for rank in range(RANKS)]
        try:
            codes = [rank.wait(PATIENCE_S) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise CommandFailed(f"ranks ended with {codes}")
        samples: dict[str, dict[str, list[float]]] = json.loads(found.read_text(encoding="utf-8"))
        return samples


class Net(torch.nn.Module):  # type: ignore[misc]  # untyped
    """Gradients of a size, and next to nothing to compute."""

    def __init__(self, size_mb: int) -> None:
        super().__init__()
        count = max(4, size_mb)
        each = size_mb * (1 << 20) // 4 // count
        self.weights = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(each)) for _ in range(count)])

    def forward(self, scale: Any) -> Any:
        return torch.stack([(one * scale).sum() for one in self.weights]).sum()


def _rank(found: Path, rounds: int, sizes_mb: list[int]) -> None:
    distributed = import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    samples = {size_mb: _steps(distributed, size_mb, rounds) for size_mb in sizes_mb}
    if distributed.get_rank() == 0:
        found.write_text(json.dumps(samples), encoding="utf-8")
    distributed.barrier()


def _steps(distributed: Any, size_mb: int, rounds: int) -> dict[str, list[float]]:
    wrap = torch.nn.parallel.DistributedDataParallel
    arranged: list[float] = []
    made = {name: wrap(Net(size_mb)) for name in (BARE, SAME, ANY)}
    buckets.use(made[ANY])
    scale = torch.ones(1)

    def step(name: str) -> float:
        made[name].zero_grad()
        distributed.barrier()
        begun = time.perf_counter()
        made[name](scale).backward()
        distributed.barrier()
        return time.perf_counter() - begun

    for _ in range(2):  # after which buckets are arranged for good
        step(BARE)
    record = {"buckets": buckets.arrangement(made[BARE]), "order": None, "sync_buffers": True}
    for _ in range(rounds):
        made[SAME] = wrap(Net(size_mb))
        begun = time.perf_counter()
        buckets.arrange(made[SAME], record)
        arranged.append(time.perf_counter() - begun)
    contestants: dict[str, Callable[[], float]] = {name: lambda name=name: step(name) for name in made}  # type: ignore[misc]
    return {**interleave(contestants, rounds * 3, warm_up=3), "arranged": arranged}


if __name__ == "__main__":
    _rank(Path(sys.argv[1]), int(sys.argv[2]), [int(size) for size in sys.argv[3:]])

"""What a save costs a training, beside `torch.save` and `torch.distributed.checkpoint`; what a restore costs, beside
reading."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import Goal, Plan, Result, interleave
from stoker.checkpoint.checkpoint import Checkpoint
from stoker.checkpoint.read.reading import open_verified

# Not `import torch`: types are checked where it is not installed, too.
torch: Any = import_module("torch")
SIZES = {"1 MB": 1e6, "100 MB": 1e8, "500 MB": 5e8, "2 GB": 2e9}
MOST_TENSORS = 48
WIDTH = 500
EVERY_S = 30.0
STEPS = 10


def run(plan: Plan) -> Result:
    result = Result("checkpoint", versions={"torch": torch.__version__})
    result.notes.append("blocked: until the training may go on; only stoker's files are flushed to the disk")
    result.notes.append("lost: processor time of a save over that of all cores, and the wait, per interval")
    result.notes.append("restore: the page cache is dropped before it, where the machine lets us")
    torch.set_num_threads(os.cpu_count() or 1)
    for label, size_bytes in list(SIZES.items())[: plan.size(4, 2)]:
        _saves(result, label, size_bytes, plan)
    _notice(result, plan.size(500, 50))
    _frozen(result, plan.size(400, 40))
    _restore(result, plan.size(1000, 100), plan)
    _overhead(result, plan.size(100, 10), plan)
    return result


class Training:
    """A model with Adam whose whole state has a size; two thirds of it are the optimizer's, once it has begun."""

    def __init__(self, size_bytes: float, *, begun: bool = True) -> None:
        count = max(4, min(MOST_TENSORS // 3, int(size_bytes / 3 / 1e5)))
        rows = int(size_bytes / 3 / 4 / count / WIDTH)
        self.model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(rows, WIDTH)) for _ in range(count)])
        self.batch = torch.randn(WIDTH, 32)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        if begun:
            self.step()

    def step(self) -> None:
        """Forward, backward, and the optimizer's part."""
        self.optimizer.zero_grad()
        for parameter in self.model:
            (parameter @ self.batch).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def _saves(result: Result, label: str, size_bytes: float, plan: Plan) -> None:
    dcp = import_module("torch.distributed.checkpoint")
    training = Training(size_bytes)
    with _scratch() as place:
        state = Checkpoint(
            model=training.model, optimizer=training.optimizer, every="1h", keep=1, folder=place / "stoker"
        )
        state.step()
        time.sleep(0.5 + size_bytes / 1e9)  # as in a training, memory for the copy has been got before the first save
        written: list[float] = []

        def ours() -> float:
            """The save, and what the next step's optimizer waits for the rest of the copy."""
            training.step()
            state.steps += 1
            state.save()
            training.step()
            blocked_s = state.cost.blocked_s
            state.finish()
            written.append(state.cost.written_s)
            return blocked_s

        def torch_save() -> float:
            training.step()
            begun = time.perf_counter()
            torch.save(training.state(), place / "torch.pt")
            return time.perf_counter() - begun

        def dcp_async() -> float:
            folder = place / "dcp"
            training.step()
            begun = time.perf_counter()
            saving = dcp.async_save(training.state(), checkpoint_id=folder, no_dist=True)
            blocked_s = time.perf_counter() - begun
            saving.result()
            shutil.rmtree(folder)
            return blocked_s

        contestants: dict[str, Callable[[], float]] = {"stoker": ours}
        if not plan.alone:
            contestants |= {"torch.save": torch_save, "dcp.async_save": dcp_async}
        samples = interleave(contestants, _rounds(plan, size_bytes))
    for name, taken in samples.items():
        result.add(f"{label}: blocked by {name}", "s", taken)
    result.add(f"{label}: until safe on disk", "s", written[1:])
    if not plan.alone:
        for name, most in (("torch.save", 0.1), ("dcp.async_save", 1.0)):
            ratios = [one / other for one, other in zip(samples["stoker"], samples[name], strict=True)]
            result.add(f"{label}: blocked, of {name}", "×", ratios, Goal(at_most=most))


def _rounds(plan: Plan, size_bytes: float) -> int:
    """Small states, whose saves take no time, are measured more often; large ones so that it ends in minutes."""
    return 3 * plan.rounds if size_bytes < 1e7 else plan.rounds if size_bytes < 1e9 else min(plan.rounds, 3)


def _notice(result: Result, megabytes: int) -> None:
    training = Training(megabytes * 1e6)
    taken: list[float] = []
    with _scratch() as place:
        state = Checkpoint(model=training.model, optimizer=training.optimizer, every="1h", keep=1, folder=place)
        for _ in range(3):
            training.step()
            begun = time.perf_counter()
            state._save(hurry=True)
            state.finish()
            taken.append(time.perf_counter() - begun)
    result.add(f"{megabytes} MB: notice to safe on disk", "s", taken, Goal(at_most=5.0))


def _frozen(result: Result, megabytes: int) -> None:
    """A backbone that is not trained, and a head of a hundredth of its size that is."""
    backbone = torch.nn.ParameterList(
        [torch.nn.Parameter(torch.randn(int(megabytes * 1e6 / 4 / 20)), requires_grad=False) for _ in range(20)]
    )
    head = torch.nn.Parameter(torch.randn(int(megabytes * 1e4 / 4)))
    moved: list[float] = []
    with _scratch() as place:
        state = Checkpoint(model=torch.nn.ParameterList([*backbone, head]), every="1h", keep=1, folder=place)
        for _ in range(4):
            head.data += 1
            state.steps += 1
            state.save(wait=True)
            moved.append(state.moved_bytes / 1e6)
    result.add(f"{megabytes} MB frozen, 1 % trained: first save", "MB", moved[:1])
    result.add(f"{megabytes} MB frozen, 1 % trained: later saves", "MB", moved[1:], Goal(at_most=megabytes * 0.02))


def _restore(result: Result, megabytes: int, plan: Plan) -> None:
    training = Training(megabytes * 1e6)
    with _scratch() as place:
        state = Checkpoint(model=training.model, optimizer=training.optimizer, every="1h", keep=1, folder=place)
        state.steps = 1
        state.save(wait=True)
        assert state.last_save is not None
        files = sorted(state.last_save.iterdir())

        def read() -> float:
            _forget_pages()
            begun = time.perf_counter()
            chunk = bytearray(1 << 22)
            for file in files:
                with file.open("rb", buffering=0) as opened:
                    while opened.readinto(chunk):
                        pass
            return megabytes / 1000 / (time.perf_counter() - begun)

        def verify() -> float:
            _forget_pages()
            begun = time.perf_counter()
            open_verified(files[0].parent)
            return megabytes / 1000 / (time.perf_counter() - begun)

        def restore() -> float:
            anew = Training(megabytes * 1e6, begun=False)
            _forget_pages()
            begun = time.perf_counter()
            again = Checkpoint(model=anew.model, optimizer=anew.optimizer, every="1h", folder=place)
            assert again.restored
            return megabytes / 1000 / (time.perf_counter() - begun)

        samples = interleave({"read": read, "verify": verify, "restore": restore}, 3 * plan.rounds)
    result.add(f"{megabytes} MB: reading the files", "GB/s", samples["read"])
    result.add(f"{megabytes} MB: reading and verifying", "GB/s", samples["verify"])
    result.add(f"{megabytes} MB: restored into the training", "GB/s", samples["restore"])
    shares = [one / other for one, other in zip(samples["restore"], samples["read"], strict=True)]
    result.add(f"{megabytes} MB: restored, of reading", "×", shares, Goal(at_least=0.8))


def _overhead(result: Result, megabytes: int, plan: Plan) -> None:
    """What one save takes away from a training that would use every core: the processor's time that it costs, and the
    time the training waits for it. Not by the clock, by which the machine's own moods are larger than a save."""
    training = Training(megabytes * 1e6)
    cores = os.cpu_count() or 1
    torch.set_num_threads(1)  # waiting for each other, threads would use time of their own
    with _scratch() as place:
        state = Checkpoint(model=training.model, optimizer=training.optimizer, every="1h", keep=2, folder=place)

        def train(*, saving: bool) -> float:
            begun, waited_s = time.process_time(), 0.0
            for number in range(STEPS):
                if saving and number == 1:
                    state.save()
                training.step()
                state.step()
            state.finish()
            if saving:
                waited_s = state.cost.blocked_s
            return waited_s + (time.process_time() - begun) / cores

        windows = {"with": lambda: train(saving=True), "without": lambda: train(saving=False)}
        taken = plan.interleave(windows)
    torch.set_num_threads(cores)
    lost = [100 * (one - other) / EVERY_S for one, other in zip(taken["with"], taken["without"], strict=True)]
    result.add(f"{megabytes} MB: lost to one save in {EVERY_S:.0f} s", "%", lost, Goal(at_most=1.0))


class _scratch(tempfile.TemporaryDirectory[str]):  # noqa: N801  # used like a function
    def __enter__(self) -> Path:  # type: ignore[override]
        return Path(super().__enter__())


def _forget_pages() -> None:
    """What a restart on another machine finds: nothing in memory. Without root, reading is as warm as restoring."""
    os.sync()
    with suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1", encoding="utf-8")

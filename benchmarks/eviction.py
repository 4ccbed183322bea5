"""From a notice to a safe checkpoint, from an eviction to the next step, and how fast a checkpoint is put back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from benchmarks.commands import workplace
from benchmarks.measure import Goal, Plan, Result
from benchmarks.subject import Stoker, installed
from stoker.agent.checkpoints.commits import Checkpoints
from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.files import OpenForWriting
from stoker.agent.checkpoints.restoring import restore
from stoker.agent.machine.machine import NodeFolder
from stoker.client.api.handle import RunHandle
from stoker.model.job.job import Job
from stoker.model.orders import Orders
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

Found = TypeVar("Found")

# Holds a state of so many megabytes in memory. On SIGTERM it writes it and ends, as a script does that knows notices.
HOLDER = """\
import os, signal, sys, time
state = [os.urandom(1 << 20) * 10 for _ in range({megabytes} // 10)]
def save(*_):
    with open("checkpoints/part", "wb") as file:
        for piece in state: file.write(piece)
    os.replace("checkpoints/part", "checkpoints/state")
    sys.exit()
if os.path.exists("checkpoints/state"): sys.exit()
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""

# Saves once and waits; the next attempt says when it had read what was saved.
STEPPER = """\
import os, time
if os.path.exists("checkpoints/state"):
    step = int(open("checkpoints/state").read())
    print("step %d at %.6f" % (step + 1, time.time()), flush=True)
else:
    open("checkpoints/state", "w").write("41")
    print("ready", flush=True)
    time.sleep(600)
"""
PIECE_BYTES = 4 << 20
PARTS = 10


def run(plan: Plan) -> Result:
    result = Result("eviction", versions={"stoker": installed()})
    with workplace() as place, Stoker(place / "stoker") as stoker:
        folder = place / "project"
        folder.mkdir()
        megabytes = plan.size(500, 50)
        samples = plan.interleave(
            {
                "durable": lambda: _notice_to_durable(stoker, folder, megabytes),
                "step": lambda: _eviction_to_step(stoker, folder),
            }
        )
    safe = f"notice to safe checkpoint, {megabytes} MB, the script's own writing included"
    result.add(safe, "s", samples["durable"], Goal(at_most=5.0))
    result.add("eviction to the first new step", "s", samples["step"], Goal(at_most=2.0))
    _restoring(plan, result, plan.size(1000, 100))
    return result


def _notice_to_durable(stoker: Stoker, folder: Path, megabytes: int) -> float:
    with _started(stoker, folder, HOLDER.format(megabytes=megabytes)) as run:
        begun = time.monotonic()
        run.evict(60)
        sets = stoker.home / "store" / layout.checkpoint_sets(run.facts.id)
        _until(lambda: sets.is_dir() and any(sets.iterdir()))
        return time.monotonic() - begun


def _eviction_to_step(stoker: Stoker, folder: Path) -> float:
    with _started(stoker, folder, STEPPER) as run:
        sets = stoker.home / "store" / layout.checkpoint_sets(run.facts.id)
        _until(lambda: sets.is_dir() and any(sets.iterdir()))
        begun = time.time()
        run.evict(0)
        log = stoker.home / "store" / layout.log(run.facts.id, 2, 0)
        found = _until(lambda: re.findall(r"step 42 at (\S+)\n", log.read_text()) if log.exists() else [])
        return float(found[0]) - begun


@contextmanager
def _started(stoker: Stoker, folder: Path, script: str) -> Iterator[RunHandle]:
    (folder / "train.py").write_text(script, encoding="utf-8")
    run = stoker.client().submit(Job(name="evicted", run="python train.py"), folder)
    log = stoker.home / "store" / layout.log(run.facts.id, 1, 0)
    _until(lambda: log.exists() and "ready" in log.read_text())
    try:
        yield run
    finally:
        run.wait(60)
        shutil.rmtree(stoker.home / "store" / layout.run(run.facts.id), ignore_errors=True)  # many would fill the disk


def _restoring(plan: Plan, result: Result, megabytes: int) -> None:
    """On the disk that programs use, with its cache emptied of the files that are read."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=os.environ.get("TMPDIR", "/var/tmp")) as name:
        disk = _Disk(Path(name), megabytes)
        speeds = plan.interleave({"read": disk.read, "copy": disk.copy, "restore": disk.restore})
        result.add(f"the disk's reading, {megabytes} MB", "MB/s", speeds["read"])
        result.add(f"`cp -r`, {megabytes} MB", "MB/s", speeds["copy"])
        result.add(f"putting back, {megabytes} MB, verified", "MB/s", speeds["restore"])
        for name, what, goal in (("read", "the disk's reading", None), ("copy", "`cp -r`", Goal(at_least=80.0))):
            shares = [100 * mine / other for mine, other in zip(speeds["restore"], speeds[name], strict=True)]
            result.add(f"putting back, as a share of {what}", "%", shares, goal)
        moved = [100 * disk.save_one_part() for _ in range(plan.rounds)]
        result.add(f"moved by a save in which one of {PARTS} parts changed", "%", moved, Goal(at_most=100 / PARTS + 1))


class _Disk:
    """A store on a disk with one checkpoint of a few large files."""

    def __init__(self, root: Path, megabytes: int) -> None:
        self._root = root
        self._store = FolderStore(root / "store")
        self._megabytes = megabytes
        self._attempt = 1
        self._checkpoints, self._work = self._next_attempt()
        for part in range(PARTS):
            self._write(part)
        self._checkpoints.commit(Care.TRUSTING)

    def read(self) -> float:
        self._forget()
        buffer, start = bytearray(PIECE_BYTES), time.monotonic()
        for path in self._stored():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        return self._megabytes / (time.monotonic() - start)

    def copy(self) -> float:
        """What nobody can put files back faster than: the disk has to take them, too."""
        self._forget()
        source, target = self._store.root / layout.checkpoint_files("r"), self._root / "copy"
        start = time.monotonic()
        subprocess.run(["cp", "-r", str(source), str(target)], check=True)
        seconds = time.monotonic() - start
        shutil.rmtree(target)
        return self._megabytes / seconds

    def restore(self) -> float:
        self._forget()
        self._attempt += 1
        start = time.monotonic()
        self._checkpoints, self._work = self._next_attempt()
        seconds = time.monotonic() - start
        shutil.rmtree(self._root / f"node-{self._attempt - 1}", ignore_errors=True)
        return self._megabytes / seconds

    def save_one_part(self) -> float:
        before = {path.name: path.stat().st_size for path in self._stored()}
        self._write(0)
        self._checkpoints.commit(Care.TRUSTING)
        moved = sum(path.stat().st_size for path in self._stored() if path.name not in before)
        return moved / (self._megabytes * 1e6)

    def _next_attempt(self) -> tuple[Checkpoints, Path]:
        folder = NodeFolder(self._root / f"node-{self._attempt}")
        folder.work.mkdir(parents=True)
        job = Job(name="evicted", run="true")
        orders = Orders("r", "evicted-1", self._attempt, 0, "key", job, "s", "python3")
        self._store.put(layout.orders("r", self._attempt), dump(orders))
        found = restore(self._store, orders, folder, lambda _kind, _text: None)
        checkpoints = Checkpoints(
            self._store,
            orders,
            folder,
            lambda: (None, {}),
            lambda _kind, _text: None,
            open_files=lambda: OpenForWriting(set()),
        )
        checkpoints.begin_from(found)
        return checkpoints, folder.work

    def _write(self, part: int) -> None:
        path = self._work / "checkpoints" / str(part)
        path.parent.mkdir(exist_ok=True)
        left = int(self._megabytes * 1e6 / PARTS)
        with path.open("wb", buffering=0) as file:
            while left:
                left -= file.write(os.urandom(min(left, PIECE_BYTES)))

    def _stored(self) -> list[Path]:
        top = self._store.root / layout.checkpoint_files("r")
        return [path for path in top.rglob("*") if path.is_file()]

    def _forget(self) -> None:
        os.sync()
        for path in self._stored():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def _until(done: Callable[[], Found], limit_s: float = 120.0) -> Found:
    deadline = time.monotonic() + limit_s
    while not (found := done()):
        if time.monotonic() > deadline:
            raise TimeoutError("the run did not get there")
        time.sleep(0.002)
    return found

"""The guard that a Ray worker leaves beside an agent: however the worker ends, nothing of the agent is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from stoker.agent.pack import pack
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.workspace import layout
from stoker.providers.ray import jobs
from stoker.stores.folder.store import FolderStore

GUARD = Path(jobs.__file__).with_name("guard.py")


@dataclass
class Watched:
    folder: Path
    key: str
    life: int
    done: int

    def processes(self) -> list[str]:
        """Of its agent and of the script, by their mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"STOKER_NODE_KEY={self.key}".encode() in path.read_bytes().split(b"\0"):
                    found.append((path.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def ended(self) -> str:
        """What it says once nothing is left."""
        with os.fdopen(self.done) as said:
            return said.read()


def watch(folder: Path, script: str) -> Watched:
    """As the actor on a node starts it."""
    key, store, empty = f"r-{os.getpid()}-{time.monotonic_ns()}", FolderStore(folder / "store"), Snapshot(())
    store.put(layout.snapshot(empty.id), wire.dump(empty))
    orders = Orders(key, "sleeper-1", 1, 0, key, Job(name="sleeper", run=script), empty.id, sys.executable)
    store.put(layout.orders(key, 1), wire.dump(orders))
    place = folder / "node"
    options = ["--store", store.url, "--orders", layout.orders(key, 1), "--folder", str(place)]
    settings = {
        "key": key,
        "agent": str(pack(folder / "agents")),
        "folder": str(place),
        "options": [*options, "--environments", str(folder / "environments")],
        "variables": {"STOKER_NODE_KEY": key, "HF_TOKEN": "hidden-17"},
    }
    given = os.memfd_create("given")
    os.write(given, json.dumps(settings).encode())
    (lives, life), (done, says) = os.pipe(), os.pipe()
    words = [sys.executable, "-I", "-S", "-c", GUARD.read_text(), str(lives), str(says), str(given)]
    subprocess.run(words, pass_fds=(lives, says, given), stdin=subprocess.DEVNULL, check=True)
    for fd in (lives, says, given):
        os.close(fd)
    return Watched(place, key, life, done)


def test_an_agent_that_ends_by_itself_says_its_exit_code_and_leaves_nothing(tmp_path: Path) -> None:
    one = watch(tmp_path, "true")
    assert one.ended() == "0"
    assert one.processes() == []
    assert not one.folder.exists()


@pytest.mark.timeout(300)
def test_the_agent_and_its_script_end_with_the_worker(tmp_path: Path) -> None:
    one = watch(tmp_path, "sleep 600")
    until = time.monotonic() + 120
    while not any(words.startswith("sleep 600") for words in one.processes()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any("hidden-17" in words for words in one.processes())
    os.close(one.life)
    assert one.ended() == "-9"
    assert one.processes() == []
    assert not one.folder.exists()

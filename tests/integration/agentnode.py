"""A node with a real agent: orders go into a store in a folder, and the agent's reports are read from there."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.agent.processes.family import MARK
from stoker.errors import Missing
from stoker.model.job.job import Job
from stoker.model.orders import Orders, Wish, Wishes
from stoker.model.run.report import Phase, Report
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

PATIENCE_S = 40.0
RUN = "r1"
CLOUD = "stoker.providers.azure.node"  # a plug-in that the agent has with it


def eventually(done: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    deadline = time.monotonic() + patience_s
    while not (found := done()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)
    return found


class Node:
    def __init__(self, root: Path, agent: Path) -> None:
        self.root = root
        self.agent = agent
        self.folder = root / "node"
        self.environments = root / "environments"
        self.store = FolderStore(root / "store")
        self.key = f"node-{os.urandom(6).hex()}"

    def order(self, run: str, files: Mapping[str, str | bytes] | None = None, attempt: int = 1, **job: Any) -> None:
        """Writes the orders of an attempt whose source has these files."""
        entries = []
        for name, content in (files or {}).items():
            data = content if isinstance(content, bytes) else textwrap.dedent(content).encode()
            sha256 = hashlib.sha256(data).hexdigest()
            self.store.put(layout.blob(sha256), data)
            entries.append(Entry(name, sha256=sha256, size_bytes=len(data)))
        snapshot = Snapshot(tuple(entries))
        self.store.put(layout.snapshot(snapshot.id), dump(snapshot))
        python = job.pop("python", sys.executable)
        given = {name: job.pop(name) for name in ("inputs", "node", "nodes", "software", "shelf") if name in job}
        if "inputs" in given:
            job["data"] = {name: {"dataset": "ants"} for name in given["inputs"]}
        orders = Orders(RUN, "ants-1", attempt, 0, self.key, Job(name="ants", run=run, **job), snapshot.id, python)
        orders = replace(orders, **given)
        self.attempt = attempt
        self.store.put(layout.orders(RUN, attempt), dump(orders))

    def start(self, *extra: str, **variables: str) -> subprocess.Popen[bytes]:
        paths = ["--folder", str(self.folder), "--environments", str(self.environments)]
        orders = ["--store", self.store.url, "--orders", layout.orders(RUN, self.attempt)]
        command = [sys.executable, "-I", "-S", str(self.agent), "run", *orders, *paths, *extra]
        env = {**os.environ, MARK: self.key, **variables}  # so that `kill` finds the agent, too
        # In a session of its own, as on a node: at a notice it raises the priority of its whole session.
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, start_new_session=True)

    def run(self, run: str, files: Mapping[str, str | bytes] | None = None, **job: Any) -> Report:
        """Carries out an attempt from its orders to its final report."""
        self.order(run, files, **job)
        return self.finish(self.start())

    def finish(self, agent: subprocess.Popen[bytes], patience_s: float = PATIENCE_S) -> Report:
        code = agent.wait(patience_s)
        own_log = self.folder / "agent.log"
        assert not own_log.exists() or own_log.read_text() == ""
        assert code == 0
        report = self.report()
        assert report.phase is Phase.DONE
        assert report.outcome
        assert not (self.folder / "work").exists()
        assert not (self.folder / "spool").exists()
        assert self.processes() == []
        return report

    def end(self) -> int:
        command = [sys.executable, "-I", "-S", str(self.agent), "end", "--folder", str(self.folder), "--key", self.key]
        return subprocess.run(command, timeout=PATIENCE_S).returncode

    def cancel(self, reason: str = "") -> None:
        self.store.put(layout.wishes(RUN, self.attempt), dump(Wishes(Wish.CANCEL, reason)))

    def report(self) -> Report:
        return load(Report, self.store.get(layout.report(RUN, self.attempt)))

    def reaches(self, phase: Phase) -> None:
        eventually(lambda: self._has_report() and self.report().phase is phase, f"the phase {phase}")

    def _has_report(self) -> bool:
        try:
            self.report()
        except Missing:
            return False
        return True

    def log(self, rank: int = 0) -> bytes:
        try:
            return self.store.get(layout.log(RUN, self.attempt, rank))
        except Missing:
            return b""

    def prints(self, text: bytes, rank: int = 0) -> None:
        eventually(lambda: text in self.log(rank), f"{text!r} in the log")

    def lines(self, key: str) -> list[Any]:
        try:
            return [json.loads(line) for line in self.store.get(key).splitlines()]
        except Missing:
            return []

    def events(self, kind: str) -> list[str]:
        return [one["text"] for one in self.lines(layout.events(RUN, self.attempt)) if one["kind"] == kind]

    def points(self) -> list[Any]:
        return self.lines(layout.metrics(RUN, self.attempt))

    def manifest(self) -> dict[str, Entry]:
        try:
            snapshot = load(Snapshot, self.store.get(layout.outputs(RUN, self.attempt)))
        except Missing:
            return {}
        return {entry.path: entry for entry in snapshot.entries}

    def outputs(self) -> dict[str, bytes]:
        """The files among the outputs, with the contents that the store has for them."""
        files = {path: entry for path, entry in self.manifest().items() if entry.kind is EntryKind.FILE}
        return {path: self.store.get(layout.output(RUN, entry.sha256)) for path, entry in files.items()}

    def processes(self) -> list[int]:
        """Living processes that carry the node's mark."""
        mark, found = f"{MARK}={self.key}".encode(), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                alive = folder.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
                if alive and mark in folder.joinpath("environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def kill(self) -> None:
        """Agent and script at once, as when a machine goes."""
        for _ in range(100):
            left = self.processes()
            if not left:
                return
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)
        raise AssertionError("some processes would not go")

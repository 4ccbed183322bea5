"""Nodes that an engine with a queue of its own allocates together: which are in which allocation is kept in the
server's home; the engine has the rest."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stoker.files import write_whole
from stoker.model.node import NodeRequest


@dataclass(frozen=True, slots=True)
class Allocation:
    key: str  # of its first node
    name: str  # of its job: looked for before it is submitted again
    keys: tuple[str, ...]  # of its nodes, in their order
    job: str = ""  # the id of its job; empty: it may not have been submitted
    stopped: tuple[str, ...] = ()  # keys of nodes that nobody needs any more
    ended: str = ""  # how, in the engine's own words: it forgets ended jobs after a while; empty: it has not
    taken: bool = False  # by the engine, which only means to run it later
    trouble: str = ""  # the code of the error that ended it; empty: none that is known
    where: str = ""  # the address of its cluster, where a provider has several

    @property
    def is_over(self) -> bool:
        """Nobody needs any of its nodes."""
        return set(self.stopped) >= set(self.keys)


class Allocations:
    """Called from several threads; one server at a time has the home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._read: dict[Path, tuple[tuple[int, int], Allocation]] = {}  # by file, and what is replaced with it

    def all(self) -> list[Allocation]:
        found = []
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):  # removed meanwhile
                found.append(self._at(path))
        return found

    def _at(self, path: Path) -> Allocation:
        """Read again only when it was replaced: a look has thousands."""
        status = path.stat()
        mark = (status.st_ino, status.st_mtime_ns)
        if (known := self._read.get(path)) and known[0] == mark:
            return known[1]
        said = json.loads(path.read_text(encoding="utf-8"))
        lists = {name: tuple(said[name]) for name in ("keys", "stopped")}
        one = Allocation(**{**said, **lists})
        self._read[path] = mark, one
        return one

    def of(self, key: str) -> Allocation | None:
        return next((one for one in self.all() if key in one.keys), None)

    def keep(self, one: Allocation) -> Allocation:
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._folder / f"{one.key}.json", json.dumps(asdict(one)), mode=0o600)
        return one

    def mark_stopped(self, key: str) -> Allocation | None:
        """Its allocation, without this node from now on. One thread at a time."""
        one = self.of(key)
        if one is None or key in one.stopped:
            return one
        return self.keep(replace(one, stopped=(*one.stopped, key)))

    def forget(self, key: str) -> None:
        with self._lock:
            path = self._folder / f"{key}.json"
            path.unlink(missing_ok=True)
            self._read.pop(path, None)


class GangGathering:
    """Nodes of a gang are asked for one by one, and allocated together: the last of them submits the allocation."""

    def __init__(self, records: Allocations) -> None:
        self._records = records
        self._starting = threading.Lock()
        self._stopping = threading.Lock()
        self._endings: dict[str, threading.Lock] = {}  # by the key of an allocation that is being released
        self._gathered: dict[str, dict[str, NodeRequest]] = {}  # by first key, until all are asked for

    def start(self, request: NodeRequest, submit: Callable[[list[NodeRequest]], None]) -> None:
        with self._starting:
            found = self._records.of(request.key)
            if found and found.job:
                return
            group = found.keys if found else self._group(request)
            gathered = self._gathered.setdefault(group[0], {})
            gathered[request.key] = request
            if set(gathered) >= set(group):
                submit([gathered[key] for key in group])
                del self._gathered[group[0]]

    def stop(
        self, key: str, stop_one: Callable[[Allocation, str], None], stop_all: Callable[[Allocation], None]
    ) -> None:
        """`stop_all` when nobody needs any of its nodes."""
        if self._records.of(key) is None:
            with self._starting:
                for gathered in self._gathered.values():
                    gathered.pop(key, None)
        with self._stopping:
            found = self._records.mark_stopped(key)
        if found and found.is_over:
            with self._endings.setdefault(
                found.key, threading.Lock()
            ):  # of each allocation alone: it takes seconds, for which others need not wait
                stop_all(found)
                self._endings.pop(found.key, None)
        elif found:
            stop_one(found, key)

    def _group(self, request: NodeRequest) -> tuple[str, ...]:
        """The nodes that share its allocation: those of its attempt that have none yet."""
        together = request.together if request.key in request.together else (request.key,)
        return tuple(key for key in together if key == request.key or self._records.of(key) is None)

"""Which nodes are in which allocation, kept in the server's home: Slurm has the rest."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stoker.files import write_whole


@dataclass(frozen=True, slots=True)
class Allocation:
    key: str  # of its first node
    name: str  # of its Slurm job: looked for before it is submitted again
    keys: tuple[str, ...]  # of its nodes, in their order
    job: str = ""  # the id of its Slurm job; empty: it may not have been submitted
    stopped: tuple[str, ...] = ()  # keys of nodes that nobody needs any more
    ended: str = ""  # how, in Slurm's own words: it forgets ended jobs after a while; empty: it has not
    taken: bool = False  # by Slurm, which only means to run it later

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

"""Which node is on which host: kept in the server's home, so that the next server finds them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stoker.files.whole import write_whole


@dataclass(frozen=True, slots=True)
class HostedNode:
    key: str
    host: str
    slots: int  # of the host
    gang: str = ""
    sent: bool = False  # the host was asked to start it: from here on it stays with this host
    abandoned: bool = False  # it is to be stopped, and its host does not answer: it may not use the store any more


class NodeRecords:
    """Called from several threads; one server at a time has the home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def all(self) -> list[HostedNode]:
        found = []
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):  # removed meanwhile
                found.append(HostedNode(**json.loads(path.read_text(encoding="utf-8"))))
        return found

    def get(self, key: str) -> HostedNode | None:
        try:
            return HostedNode(**json.loads(self._path(key).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def keep(self, node: HostedNode) -> HostedNode:
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path(node.key), json.dumps(asdict(node)), mode=0o600)
        return node

    def abandon(self, node: HostedNode) -> None:
        self.keep(replace(node, abandoned=True))

    def forget(self, key: str) -> None:
        with self._lock:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """Keys are made by the server; one that is not a name has no file."""
        return self._folder / f"{os.path.basename(key)}.json"  # noqa: PTH119  # text in, text out

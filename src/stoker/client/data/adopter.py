"""A process that copies small files into a folder store, for another process that has thousands of them.

Each request is a line with a list of places, and the response a list of results.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stoker.errors import StokerError
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

Answer = tuple[str, bool, int, int, int, int]  # hash, whether it is new, size, mtime_ns, ctime_ns, inode


def content_below(sha256: str) -> str:
    """The key of a content in a store, relative to the folder of contents."""
    return layout.content("", sha256).removeprefix(layout.contents(""))


def main() -> None:
    store = FolderStore(Path(sys.argv[1]))
    for line in sys.stdin.buffer:
        answers = [_adopt(store, place) for place in json.loads(line)]
        sys.stdout.buffer.write(json.dumps(answers).encode() + b"\n")
        sys.stdout.buffer.flush()


def _adopt(store: FolderStore, place: str) -> Answer | None:
    """None for a file that cannot be copied, or not now: the caller finds out why."""
    try:
        sha256, seen, new = store.adopt(place, content_below)
    except (OSError, StokerError):
        return None
    return (sha256, new, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino) if sha256 else None


if __name__ == "__main__":
    main()

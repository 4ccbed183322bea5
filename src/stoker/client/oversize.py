"""Refuses a source folder that is too large, and says where its bytes are."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker.client.ignore import STOKERIGNORE
from stoker.errors import SnapshotRefused

_SHOWN = 10


def check_size(root: Path, files: Sequence[tuple[str, os.stat_result]], limit_bytes: int) -> None:
    total = sum(seen.st_size for _, seen in files)
    if total <= limit_bytes:
        return
    largest = largest_paths((path, seen.st_size) for path, seen in files)
    lines = [f"  {size_text(size):>8}  {path}" for path, size in largest]
    raise SnapshotRefused(
        f"`{root}` holds {size_text(total)} in {len(files)} files, and at most {size_text(limit_bytes)} can be taken"
        " along; the largest are\n" + "\n".join(lines),
        hint=f"add what the code does not need to {STOKERIGNORE}, as in `echo '{largest[0][0]}' >> {STOKERIGNORE}`,"
        " and name data under `data:` in the job",
    )


def largest_paths(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Where most bytes are: a folder as one line (ending in `/`) unless a single thing in it is half of it."""
    sizes: dict[str, int] = defaultdict(int)
    children: dict[str, set[str]] = defaultdict(set)
    for path, size in files:
        sizes[path] = size
        while path:
            parent = path.rstrip("/").rpartition("/")[0]
            parent = f"{parent}/" if parent else ""
            sizes[parent] += size
            children[parent].add(path)
            path = parent
    shown, todo = [], list(children[""])
    while todo:
        path = todo.pop()
        inside = children.get(path, set())
        if inside and max(sizes[one] for one in inside) * 2 >= sizes[path]:
            todo += inside
        else:
            shown.append((path, sizes[path]))
    return sorted(shown, key=lambda one: (-one[1], one[0]))[:_SHOWN]


def size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"

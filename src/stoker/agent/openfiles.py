"""Which files some process of a node has open for writing: those are not finished, however quiet they are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def being_written(pids: Iterable[int]) -> set[str]:
    """Absolute paths. Empty where the system does not tell: then a file's being quiet has to do."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended, or is not ours to look at
            for fd in os.listdir(_PROC / str(pid) / "fd"):  # noqa: PTH208  # names are all that is needed
                with suppress(OSError, ValueError):
                    if _writes(pid, fd):
                        found.add(os.readlink(_PROC / str(pid) / "fd" / fd))  # noqa: PTH115  # text, not a Path
    return found


def _writes(pid: int, fd: str) -> bool:
    for line in (_PROC / str(pid) / "fdinfo" / fd).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "flags":
            return int(value.strip(), 8) & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
    return False

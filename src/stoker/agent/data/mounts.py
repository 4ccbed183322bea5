"""The kernel's mounts: those below a folder, making one read-only, and taking them away. Only Linux has such."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

_TABLE = Path("/proc/self/mountinfo")
_BIND, _REMOUNT, _READ_ONLY = 4096, 32, 1
DETACH = 2
_TRIES = 8  # mounts may lie on top of each other


def mounted_below(folder: Path) -> list[str]:
    """The inner ones first: they have to go first."""
    try:
        lines = _TABLE.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    top = os.path.realpath(folder)
    places = [re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines]
    return [place for place in reversed(places) if place == top or place.startswith(f"{top}/")]


def unmount_below(folder: Path) -> None:
    """Also what a dead process left mounted, or somebody still reads from: that is only taken out of sight."""
    for _ in range(_TRIES):
        places = mounted_below(folder)
        if not places:
            return
        for place in places:
            _unmount(place)


def read_only(folder: Path) -> bool:
    """Nobody can change what is below the folder through its path from here on, not even root, until it is unmounted.
    False where this process may not do that."""
    if os.geteuid() != 0 or not _TABLE.exists():
        return False
    place = os.fsencode(folder)
    system = libc()
    if system.mount(place, place, None, _BIND, None):
        return False
    if system.mount(None, place, None, _BIND | _REMOUNT | _READ_ONLY, None):
        _unmount(str(folder))
        return False
    return True


def _unmount(place: str) -> None:
    if os.geteuid() == 0:
        libc().umount2(os.fsencode(place), DETACH)
        return
    for tool in ("fusermount3", "fusermount"):
        with suppress(OSError):
            if not subprocess.run([tool, "-uz", "--", place], capture_output=True).returncode:
                return


def libc() -> Any:
    import ctypes  # here, because it is slow to import and most runs mount nothing

    return ctypes.CDLL(None, use_errno=True)

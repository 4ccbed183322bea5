"""The kernel's mounts: those below a folder, making one read-only, and taking them away. Only Linux has such."""

from __future__ import annotations

import array
import os
import re
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
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


# What `fusermount3` does for a mounting program, for root on nodes without one: it opens the device, mounts it, and
# hands it over. Called as `agent.pyz fusermount …` from a script of that name.

_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024}
_FOR_THE_KERNEL = ("allow_other", "default_permissions", "max_read=", "blksize=")


def write_shim(folder: Path, command: Sequence[str]) -> Path:
    """A folder for PATH with a `fusermount3` in it that runs this file by `command`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("fusermount3", "fusermount"):
        shim = folder / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        shim.chmod(0o700)
    return folder


def main(arguments: Sequence[str], told: Mapping[str, str]) -> int:
    """`-u … DIR` unmounts, anything else mounts, as libfuse's own program; `told` has the channel to answer by."""
    place = os.fsencode(arguments[-1])
    if any(word.startswith("-") and not word.startswith("--") and "u" in word for word in arguments[:-1]):
        return 1 if libc().umount2(place, DETACH) else 0
    options = arguments[arguments.index("-o") + 1].split(",") if "-o" in arguments else []
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    kind, source, flags, data = mount_arguments(options, device)
    if libc().mount(source.encode(), place, kind.encode(), flags, data.encode()):
        return 1
    with socket.socket(fileno=os.dup(int(told["_FUSE_COMMFD"]))) as channel:
        channel.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [device]))])
    return 0


def mount_arguments(options: Sequence[str], device: int) -> tuple[str, str, int, str]:
    """The file system's type, its source, the flags and the data that the kernel is given. Pure."""
    named = dict(option.partition("=")[::2] for option in options)
    kind = f"fuse.{named['subtype']}" if named.get("subtype") else "fuse"
    flags = _FLAGS["nosuid"] | _FLAGS["nodev"]
    for option in options:
        flags |= _FLAGS.get(option, 0)
    data = [f"fd={device}", "rootmode=40000", "user_id=0", "group_id=0"]
    data += [option for option in options if option.startswith(_FOR_THE_KERNEL)]
    return kind, named.get("fsname") or "stoker", flags, ",".join(data)

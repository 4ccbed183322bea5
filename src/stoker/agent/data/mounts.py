"""The kernel's mounts (Linux only): listing them, making one read-only, removing them, and how long a script waits for
one.
Waiting is sampled from outside, many times a second. A moment counts if some thread of the script waits inside the
kernel for the bytes of a file and none of its threads is running: then nothing happens but the reading. A process that
waits for others, as a trainer for its data loaders, counts with them.
"""

from __future__ import annotations

import array
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.agent.shipping.worker import ShippingThread

_TABLE = Path("/proc/self/mountinfo")
_BIND, _REMOUNT, _READ_ONLY = 4096, 32, 1
DETACH = 2
_TRIES = 8  # mounts may be stacked


def mounted_below(folder: Path) -> list[str]:
    """The innermost first: the order in which to unmount them."""
    try:
        lines = _TABLE.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    top = os.path.realpath(folder)
    places = [re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines]
    return [place for place in reversed(places) if place == top or place.startswith(f"{top}/")]


def unmount_below(folder: Path) -> None:
    """Also mounts of a dead process, and mounts in use: those are detached lazily."""
    for _ in range(_TRIES):
        places = mounted_below(folder)
        if not places:
            return
        for place in places:
            _unmount(place)


def read_only(folder: Path) -> bool:
    """From here on nobody can change anything below the folder through its path, not even root, until it is unmounted.
    False where this process lacks the permission."""
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


# Replaces `fusermount3` for a mount program, for root on nodes without it: opens the device, mounts it, and passes it
# on. Called as `agent.pyz fusermount …` from a script of that name.

_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1024}
_FOR_THE_KERNEL = ("allow_other", "default_permissions", "max_read=", "blksize=")


def write_shim(folder: Path, command: Sequence[str]) -> Path:
    """A folder for PATH that contains a `fusermount3` which runs this file by `command`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("fusermount3", "fusermount"):
        shim = folder / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        shim.chmod(0o700)
    return folder


def main(arguments: Sequence[str], told: Mapping[str, str]) -> int:
    """`-u … DIR` unmounts, anything else mounts, as libfuse's own program; `told` names the channel for the answer."""
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
    """File system type, source, flags and data for the kernel. Pure."""
    named = dict(option.partition("=")[::2] for option in options)
    kind = f"fuse.{named['subtype']}" if named.get("subtype") else "fuse"
    flags = _FLAGS["nosuid"] | _FLAGS["nodev"]
    for option in options:
        flags |= _FLAGS.get(option, 0)
    data = [f"fd={device}", "rootmode=40000", "user_id=0", "group_id=0"]
    data += [option for option in options if option.startswith(_FOR_THE_KERNEL)]
    return kind, named.get("fsname") or "stoker", flags, ",".join(data)


EVERY_S = 0.1
SHARE = 50  # sampling takes at most 1/50 of the time
_PROC = Path("/proc")
_WAITS = ("fuse_", "request_wait_answer", "folio_wait", "wait_on_page", "io_schedule", "filemap_")


class WaitWatch(ShippingThread):
    """`pids` returns the processes of the script."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        super().__init__("data waits")
        self._pids = pids
        self.waited_s = 0.0

    def work(self) -> None:
        before = time.monotonic()
        pause_s = EVERY_S
        while not self.ending.wait(pause_s):
            start = time.monotonic()
            if is_waiting(self._pids()):
                self.waited_s += start - before
            before = start
            pause_s = max(EVERY_S, SHARE * (time.monotonic() - start))


def is_waiting(pids: Iterable[int]) -> bool:
    """Where the kernel does not report what a thread waits for, an uninterruptible one counts as reading."""
    reading = False
    for pid in pids:
        with suppress(OSError):
            for thread in os.listdir(_PROC / str(pid) / "task"):  # noqa: PTH208  # dozens, many times a second
                place = f"{_PROC}/{pid}/task/{thread}"
                state = _read(f"{place}/stat").rpartition(")")[2].split(maxsplit=1)[0]
                if state == "R":
                    return False
                if state in "DS":
                    where = _read(f"{place}/wchan")
                    reading = reading or where.startswith(_WAITS) or (state == "D" and where in ("0", ""))
    return reading


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096).decode(errors="replace")
    finally:
        os.close(fd)

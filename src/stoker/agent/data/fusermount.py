"""What `fusermount3` does for a mounting program, for root on nodes without one: it opens the device, mounts it, and
hands it over. Called as `agent.pyz fusermount …` from a script of that name."""

from __future__ import annotations

import array
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.agent.data.mounts import DETACH, libc

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

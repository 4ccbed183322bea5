"""System calls that Python 3.11 does not provide. Linux only; each failure is an `OSError` that names the call."""

from __future__ import annotations

import ctypes
import os

NEW_MOUNTS = 0x00020000
NEW_HOSTNAME = 0x04000000
NEW_IPC = 0x08000000
NEW_PIDS = 0x20000000
NEW_NETWORK = 0x40000000

READ_ONLY = 1
BIND = 4096
RECURSIVE = 16384
PRIVATE = 1 << 18

_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # glibc has no wrapper for it
_DIE_WITH_PARENT = 1
_ADOPT_ORPHANS = 36

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _check("unshare", _libc.unshare(flags))


def enter(descriptor: int, kind: int) -> None:
    """Moves only this thread into another namespace."""
    _check("setns", _libc.setns(descriptor, kind))


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    what = [text.encode() if text else None for text in (source, target, kind, options)]
    _check(f"mount {source or kind} at {target}", _libc.mount(*what[:3], ctypes.c_ulong(flags), what[3]))


def make_root(folder: str) -> None:
    """The folder, which must be a mount, becomes `/`, and the old root becomes unreachable."""
    os.chdir(folder)
    _check("pivot_root", _libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
    _check("umount2", _libc.umount2(b".", _DETACH))
    os.chdir("/")


def set_hostname(name: str) -> None:
    _check("sethostname", _libc.sethostname(name.encode(), len(name.encode())))


def die_with_parent() -> None:
    _check("prctl", _libc.prctl(_DIE_WITH_PARENT, 9, 0, 0, 0))


def adopt_orphans() -> None:
    """Orphaned processes become children of this one, wherever in its tree they are."""
    _check("prctl", _libc.prctl(_ADOPT_ORPHANS, 1, 0, 0, 0))


def _check(call: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")

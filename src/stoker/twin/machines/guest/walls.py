"""Isolation with Linux namespaces: system calls, networks, and a machine's own file system. Root."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

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


T = TypeVar("T")


def inside(network: int, action: Callable[[], T]) -> T:
    """Sockets that the action creates stay in that network after it has returned."""

    def enter_and_act() -> T:
        enter(network, NEW_NETWORK)
        return action()

    return _in_thread(enter_and_act)


def new_network() -> int:
    """A descriptor of an empty network, which disappears with its last holder."""

    def make() -> int:
        unshare(NEW_NETWORK)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def network_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def listening(address: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.listen(128)
    return made


def _in_thread(action: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="network")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


METADATA_ADDRESS = "169.254.169.254"
_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def make_network(order: Mapping[str, Any], folder: Path) -> None:
    """A virtual cable from a new network namespace to the twin's switch. This process ends up in the new one."""
    switch = int(order["switch_fd"])
    unshare(NEW_NETWORK)
    here = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    address, wire = order["address"], order["wire"]
    _ip(folder, [
        f"link add eth0 type veth peer name {wire} netns /proc/{os.getpid()}/fd/{switch}",
        "link set lo up",
        f"addr add {METADATA_ADDRESS}/32 dev lo",
        f"addr add {address}/32 dev eth0",
        "link set eth0 up",
        *(f"route add {network} dev eth0 src {address}" for network in _PRIVATE_NETWORKS),
    ])  # fmt: skip
    enter(switch, NEW_NETWORK)
    bridge = order["bridge"]
    if not Path(f"/proc/self/net/dev_snmp6/{bridge}").exists():
        _ip(folder, [f"link add {bridge} type bridge", f"link set {bridge} up"], lenient=True)
    _ip(folder, [f"link set {wire} master {bridge}", f"link set {wire} up"])
    enter(here, NEW_NETWORK)
    os.close(here)


def make_file_system(order: Mapping[str, Any]) -> None:
    """Own mounts, with the machine's disk as root. The host's other folders are gone when this returns."""
    unshare(NEW_MOUNTS | NEW_HOSTNAME | NEW_IPC)
    set_hostname(order["hostname"])
    mount("", "/", flags=PRIVATE | RECURSIVE)
    root = order["root"]
    mount(root, root, flags=BIND)
    for lower, upper, work in order["layers"]:
        # Volatile: powering off does not wait for the host's disk. Written data is in the host's memory.
        options = f"volatile,lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        with suppress(FileNotFoundError):  # missing if the twin was killed exactly here
            shutil.rmtree(work)  # it contains the mark of a volatile mount, which would prevent the next one
        Path(work).mkdir()
        Path(root + lower).mkdir(parents=True, exist_ok=True)
        mount("overlay", root + lower, "overlay", options=options)
    for name, target in order["links"].items():
        with suppress(FileExistsError):
            Path(root + name).symlink_to(target)
    _make_devices(Path(root))
    mount("proc", f"{root}/proc", "proc")
    mount("sysfs", f"{root}/sys", "sysfs", flags=READ_ONLY)
    with suppress(OSError):  # the host may have none
        mount("/sys/fs/cgroup", f"{root}/sys/fs/cgroup", flags=BIND | RECURSIVE)
    mount("tmpfs", f"{root}/run", "tmpfs", options="mode=755")
    make_root(root)


def name_hosts(hostname: str, address: str) -> None:
    """Names that cannot be resolved stall programs for seconds, so the machine's own is in its hosts file."""
    _rewrite("/etc/hostname", f"{hostname}\n")
    _rewrite("/etc/hosts", f"127.0.0.1 localhost\n{address} {hostname}\n::1 localhost ip6-localhost\n")
    _rewrite("/etc/resolv.conf", "# no name server: the twin's machines reach each other and what the host exposes\n")


def _make_devices(root: Path) -> None:
    mount("tmpfs", f"{root}/dev", "tmpfs", options="mode=755")
    for name in _DEVICES:
        if Path(f"/dev/{name}").exists():
            (root / "dev" / name).touch()
            mount(f"/dev/{name}", f"{root}/dev/{name}", flags=BIND)
    for name, target in _LINKS.items():
        (root / "dev" / name).symlink_to(target)
    for name, kind, options in (("pts", "devpts", "newinstance,ptmxmode=0666,mode=620"), ("shm", "tmpfs", "mode=1777")):
        (root / "dev" / name).mkdir()
        mount(kind, f"{root}/dev/{name}", kind, options=options)
    (root / "dev" / "ptmx").symlink_to("pts/ptmx")


def _ip(folder: Path, lines: list[str], *, lenient: bool = False) -> None:
    batch = folder / "network.batch"
    batch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["ip", "-force", "-batch", str(batch)] if lenient else ["ip", "-batch", str(batch)]
    code = os.spawnvp(os.P_WAIT, "ip", words)
    if code and not lenient:
        raise OSError(f"`ip -batch {batch}` failed with exit code {code}")


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _rewrite(name: str, text: str) -> None:
    path = Path(name)
    path.unlink(missing_ok=True)  # it may be a link to a path outside the machine
    path.write_text(text, encoding="utf-8")

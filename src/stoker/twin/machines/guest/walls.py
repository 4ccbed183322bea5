"""The isolation of a machine: its own network, hostname, pids and file system. Linux, root.

The file system is the host's operating system with the machine's disk on top; other folders of the host are absent.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.twin.machines.guest import kernel

METADATA_ADDRESS = "169.254.169.254"
_PRIVATE_NETWORKS = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}


def make_network(order: Mapping[str, Any], folder: Path) -> None:
    """A virtual cable from a new network namespace to the twin's switch. This process ends up in the new one."""
    switch = int(order["switch_fd"])
    kernel.unshare(kernel.NEW_NETWORK)
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
    kernel.enter(switch, kernel.NEW_NETWORK)
    bridge = order["bridge"]
    if not Path(f"/proc/self/net/dev_snmp6/{bridge}").exists():
        _ip(folder, [f"link add {bridge} type bridge", f"link set {bridge} up"], lenient=True)
    _ip(folder, [f"link set {wire} master {bridge}", f"link set {wire} up"])
    kernel.enter(here, kernel.NEW_NETWORK)
    os.close(here)


def make_file_system(order: Mapping[str, Any]) -> None:
    """Own mounts, with the machine's disk as root. The host's other folders are gone when this returns."""
    kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_HOSTNAME | kernel.NEW_IPC)
    kernel.set_hostname(order["hostname"])
    kernel.mount("", "/", flags=kernel.PRIVATE | kernel.RECURSIVE)
    root = order["root"]
    kernel.mount(root, root, flags=kernel.BIND)
    for lower, upper, work in order["layers"]:
        # Volatile: powering off does not wait for the host's disk. Written data is in the host's memory.
        options = f"volatile,lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        with suppress(FileNotFoundError):  # missing if the twin was killed exactly here
            shutil.rmtree(work)  # it contains the mark of a volatile mount, which would prevent the next one
        Path(work).mkdir()
        Path(root + lower).mkdir(parents=True, exist_ok=True)
        kernel.mount("overlay", root + lower, "overlay", options=options)
    for name, target in order["links"].items():
        with suppress(FileExistsError):
            Path(root + name).symlink_to(target)
    _make_devices(Path(root))
    kernel.mount("proc", f"{root}/proc", "proc")
    kernel.mount("sysfs", f"{root}/sys", "sysfs", flags=kernel.READ_ONLY)
    with suppress(OSError):  # the host may have none
        kernel.mount("/sys/fs/cgroup", f"{root}/sys/fs/cgroup", flags=kernel.BIND | kernel.RECURSIVE)
    kernel.mount("tmpfs", f"{root}/run", "tmpfs", options="mode=755")
    kernel.make_root(root)


def name_hosts(hostname: str, address: str) -> None:
    """Names that cannot be resolved stall programs for seconds, so the machine's own is in its hosts file."""
    _rewrite("/etc/hostname", f"{hostname}\n")
    _rewrite("/etc/hosts", f"127.0.0.1 localhost\n{address} {hostname}\n::1 localhost ip6-localhost\n")
    _rewrite("/etc/resolv.conf", "# no name server: the twin's machines reach each other and what the host exposes\n")


def _make_devices(root: Path) -> None:
    kernel.mount("tmpfs", f"{root}/dev", "tmpfs", options="mode=755")
    for name in _DEVICES:
        if Path(f"/dev/{name}").exists():
            (root / "dev" / name).touch()
            kernel.mount(f"/dev/{name}", f"{root}/dev/{name}", flags=kernel.BIND)
    for name, target in _LINKS.items():
        (root / "dev" / name).symlink_to(target)
    for name, kind, options in (("pts", "devpts", "newinstance,ptmxmode=0666,mode=620"), ("shm", "tmpfs", "mode=1777")):
        (root / "dev" / name).mkdir()
        kernel.mount(kind, f"{root}/dev/{name}", kind, options=options)
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

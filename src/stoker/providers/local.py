"""Nodes on this computer: each is a folder, a lock and an agent process that outlives the server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

from stoker import containers
from stoker.agent.machine.machine import remove_tree
from stoker.agent.pack import pack
from stoker.agent.processes.family import UNSHIPPED
from stoker.agent.processes.standby import ask
from stoker.containers import EngineSight
from stoker.errors import ProviderFailed
from stoker.files import claim, is_held
from stoker.model.node import Entrance, Features, Need, NodeRequest, NodeSight, NodeState, Offer, Pool, Said
from stoker.providers import Setup, surroundings

MOST_NODES = 64  # of one run: each is a few processes of this computer
_END_S = 30.0  # to kill the processes that a lost agent left behind


class LocalProvider:
    # An agent whose lock is held is alive. A silent one may wait for something, such as space on a full disk.
    features: ClassVar[Features] = Features(
        most_nodes=MOST_NODES,
        shares_files=True,
        look_every_s=0.03,
        patience_s=3600.0,
        reachable=True,
        terminal=True,
        containers=sys.platform == "linux",  # elsewhere engines run in a VM, with processes that nobody here sees
        surveyed=sys.platform == "linux",
    )

    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._slots = setup.slots or os.cpu_count() or 1
        self._children: list[subprocess.Popen[bytes]] = []
        # A look tests a lock by taking it for a moment; a start at that moment would think the node is up.
        self._mutex = threading.Lock()
        self._agent: Path | None = None
        self._standby: socket.socket | None = None
        self._sent_for: set[str] = set()  # keys of nodes whose agents this process started

    def offers(self, need: Need) -> list[Offer]:
        if need.nodes > MOST_NODES or need.size or need.region or need.gpus > _gpus():
            return []
        if need.cpus > (os.cpu_count() or 1) or need.memory_gb > _memory_gb():
            return []
        return [Offer("local", f"{os.cpu_count()} cores", "this computer", Decimal(0), self._slots)]

    def start(self, request: NodeRequest) -> None:
        folder = self._home.nodes / request.key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            with self._mutex:
                self._spawn(folder, request)
        except OSError as error:
            raise ProviderFailed(f"could not start an agent in {folder}: {error.strerror}") from error

    def look(self) -> list[NodeSight]:
        self._children = [child for child in self._children if child.poll() is None]
        try:
            folders = list(self._home.nodes.iterdir())
        except FileNotFoundError:
            return []
        with self._mutex:
            return [self._sight(folder) for folder in folders]

    def stop(self, key: str) -> None:
        folder = self._home.nodes / key
        if not folder.is_dir():
            return
        if (folder / "work").exists() or self._sight(folder).state is NodeState.UP:
            self._end(folder, key)
        with contextlib.suppress(OSError):  # the next look sees it and stops it again
            remove_tree(folder)
        self._sent_for.discard(key)

    def entrance(self, key: str) -> Entrance:
        folder = ("--folder", str(self._home.nodes / key))
        attach = (*self._agent_command("attach"), *folder)
        return Entrance((*self._agent_command("enter"), *folder, "--"), terminal=attach, here=True)

    def command(self, key: str, words: Sequence[str]) -> Said:
        done = subprocess.run([*self.entrance(key).words, *words], stdin=subprocess.DEVNULL, capture_output=True)
        return Said(done.returncode if done.returncode >= 0 else 128 - done.returncode, done.stdout, done.stderr)

    def engines(self, image: str, pool: Pool | None) -> list[EngineSight]:  # noqa: ARG002  # one computer for all
        return containers.survey(image, surroundings({}))

    def _spawn(self, folder: Path, request: NodeRequest) -> None:
        """The lock is taken here and passed to the agent, so that it always has an owner."""
        lock = claim(folder / "lock")
        if lock is None:
            return
        try:
            self._send_for(self._options(folder, request), surroundings(request.variables), lock)
            self._sent_for.add(request.key)
        finally:
            os.close(lock)

    def _send_for(self, options: dict[str, str], variables: dict[str, str], lock: int) -> None:
        """From the standby process; a new one is started where there is none, or it has died."""
        for _ in range(2):
            if self._standby is None:
                self._standby = self._start_standby()
            try:
                return ask(self._standby, options, variables, lock)
            except OSError:
                self._standby.close()
                self._standby = None
        raise ProviderFailed("could not start an agent", hint="stoker doctor")

    def _start_standby(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, (self._home.root / "agents.log").open("ab") as log:
            command = [*self._agent_command("stand-by"), "--channel-fd", str(theirs.fileno())]
            child = subprocess.Popen(
                command,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home.root,
            )
        self._children.append(child)
        return ours

    def _options(self, folder: Path, request: NodeRequest) -> dict[str, str]:
        given = {"--store": request.store, "--orders": request.orders, "--folder": str(folder)}
        return given | {"--environments": str(self._home.environments), "--uv": _uv() or ""}

    def _agent_command(self, verb: str) -> list[str]:
        if self._agent is None or not self._agent.exists():
            self._agent = pack(self._home.agents)
        return [sys.executable, "-I", "-S", str(self._agent), verb]

    def _sight(self, folder: Path) -> NodeSight:
        """The kernel releases the lock when the agent dies, however it dies."""
        if is_held(folder / "lock"):
            return NodeSight(folder.name, NodeState.UP)
        # An agent writes its log first: without a log, the server may have died while it started this node.
        unfinished = folder.name not in self._sent_for and not (folder / "agent.log").exists()
        return NodeSight(folder.name, NodeState.GONE, _last_words(folder / "agent.log"), unfinished=unfinished)

    def _end(self, folder: Path, key: str) -> None:
        """Raises ProviderFailed while log lines are not uploaded: the folder is still needed."""
        command = [*self._agent_command("end"), "--folder", str(folder), "--key", key]
        try:
            ended = subprocess.run(command, timeout=_END_S, check=False, stdin=subprocess.DEVNULL, capture_output=True)
            unshipped = ended.returncode == UNSHIPPED
        except subprocess.TimeoutExpired:
            unshipped = (folder / "access").exists()
        if unshipped:
            raise ProviderFailed(f"the last log lines of {key} are not uploaded yet: the store is unreachable")


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _gpus() -> int:
    """Those that the driver shows as devices."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _last_words(log: Path) -> str:
    """Why the agent died, from its log."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace")[-4000:].split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return f"its agent died: {said[-1]}" if said else "its agent was killed"
    return "its agent never started"


def _uv() -> str | None:
    """The uv that is installed with Stoker, before any other."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")

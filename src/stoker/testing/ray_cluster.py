"""A Ray cluster of this computer: a real head and more nodes, with folders, ports and a home of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from stoker.providers import surroundings

READY_S = 300.0  # a node takes seconds, and minutes on a computer with several times its work
_MEMORY = 80_000_000  # bytes of each node for objects, of which the agent is the only one
_PACE = {  # a node that is killed is lost after some seconds, and one that starts on a busy computer is not
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}


@dataclass
class RayYard:
    """`program` is the `ray` of an environment that has `ray[default]`. Its folder has a short path: Ray's sockets are
    in it."""

    folder: Path
    program: Path
    count: int = 3  # of nodes, the head among them
    _ports: list[int] = field(default_factory=list, repr=False)
    _nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)

    @property
    def address(self) -> str:
        """Of its dashboard."""
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def boot(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        self._ports = _free_ports(2)
        self.start_head()
        for number in range(1, self.count):  # one by one: on a busy computer, several at once take too long for Ray
            self.await_nodes(number)
            self.start_node(number)
        self.await_nodes(self.count)

    def start_head(self) -> None:
        ports = [f"--port={self._ports[0]}", f"--dashboard-port={self._ports[1]}", "--dashboard-host=127.0.0.1"]
        self._start(0, "--head", *ports, f"--temp-dir={self.folder / 't'}")

    def start_node(self, number: int) -> None:
        self._start(number, f"--address=127.0.0.1:{self._ports[0]}")

    def kill_node(self, number: int) -> None:
        """All of its processes end without a word. 0 is the head."""
        node = self._nodes.pop(number)
        with suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()

    def await_nodes(self, count: int) -> None:
        deadline = time.monotonic() + READY_S
        while self._alive() != count:
            for number, node in list(self._nodes.items()):
                if node.poll() is not None:  # on a busy computer, Ray gives up
                    self.start_node(number) if number else self.start_head()
            if time.monotonic() > deadline:
                said = "\n".join(one.read_text()[-2000:] for one in sorted(self.folder.glob("*.out")))
                raise RuntimeError(f"the cluster has {self._alive()} of {count} nodes:\n{said}")
            time.sleep(0.2)

    def close(self) -> None:
        for number in list(self._nodes):
            self.kill_node(number)
        for pid in self._processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"{self.address}/api/cluster_status", timeout=10) as answer:
                report = json.load(answer)["data"]["clusterStatus"]["loadMetricsReport"]
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        return sum(int(count) for _, count in report["nodeTypes"])

    def _start(self, number: int, *words: str) -> None:
        keep = {name: value for name, value in surroundings({}).items() if not name.startswith(("RAY_", "STOKER_"))}
        path = f"{self.program.parent}{os.pathsep}{keep.get('PATH', '')}"
        own = {"HOME": str(self.home), "PATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
        size = ["--num-cpus=2", f"--object-store-memory={_MEMORY}", "--node-ip-address=127.0.0.1"]
        size += ["--min-worker-port=0", "--max-worker-port=0"]  # free ones: other clusters are on this computer
        agent = "--dashboard-agent-listen-port=0"
        with (self.folder / f"{number}.out").open("ab") as log:
            self._nodes[number] = subprocess.Popen(
                [str(self.program), "start", "--block", *words, *size, agent, "--disable-usage-stats"],
                env={**keep, **_PACE, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _processes(self) -> list[int]:
        """What has left the group of its node, by the home of the cluster."""
        found = []
        for place in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                found += [int(place.parent.name)] if f"HOME={self.home}".encode() in place.read_bytes() else []
        return found


@contextmanager
def ray_cluster(program: Path, count: int = 3) -> Iterator[RayYard]:
    if not program.exists():
        raise RuntimeError(f"Ray's tests need {program}; try: make .venv-ray/installed")
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    cluster = RayYard(folder, program, count)
    try:
        cluster.boot()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()

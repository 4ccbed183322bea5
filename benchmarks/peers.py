"""The peers: how each is installed into a venv of its own, and how its user would run `script.py` with it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.commands import TOKEN, TOKEN_NAME, Command, CommandFailed, clean_environment, sweep

PEERS = Path(__file__).parent / ".peers"
SCRIPT = "script.py"

METAFLOW_FLOW = """\
import runpy

from metaflow import FlowSpec, step


class ScriptFlow(FlowSpec):
    @step
    def start(self):
        runpy.run_path("script.py", run_name="__main__")
        self.next(self.end)

    @step
    def end(self):
        pass


if __name__ == "__main__":
    ScriptFlow()
"""

# submitit does not stream: its user asks for the output when the job is done.
SUBMITIT_CALL = """\
import sys

import submitit

executor = submitit.LocalExecutor(folder="logs")
job = executor.submit(submitit.helpers.CommandFunction([sys.executable, "script.py"]))
job.result()
print(job.stdout())
"""

MLFLOW_PROJECT = """\
name: script
entry_points:
  main:
    command: python script.py
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """`files` are what its user adds beside the script; `streams` says that lines arrive while the script runs."""

    name: str
    requirement: str
    argv: Callable[[Path], list[str]]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    streams: bool = True

    @property
    def bin(self) -> Path:
        return PEERS / self.name / "bin"

    def command(self, folder: Path, home: Path, environment: Mapping[str, str] | None = None) -> Command:
        """Running the `script.py` in `folder`, whose other files are written here."""
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return Command(
            name=self.name,
            argv=tuple(self.argv(self.bin)),
            folder=folder,
            environment={**self.surroundings(home), **(environment or {})},
        )

    def surroundings(self, home: Path) -> dict[str, str]:
        return {"HOME": str(home), "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **self.environment}


TORCHX = Peer(
    name="torchx",
    requirement="torchx==0.7.0",
    argv=lambda bin: [f"{bin}/torchx", "run", "-s", "local_cwd", "utils.python", "--script", SCRIPT],
)
METAFLOW = Peer(
    name="metaflow",
    requirement="metaflow==2.19.39",
    argv=lambda bin: [f"{bin}/python", "flow.py", "run"],
    files={"flow.py": METAFLOW_FLOW},
    environment={"USERNAME": "benchmark"},
)
SUBMITIT = Peer(
    name="submitit",
    requirement="submitit==1.5.4",
    argv=lambda bin: [f"{bin}/python", "submit.py"],
    files={"submit.py": SUBMITIT_CALL},
    streams=False,
)
MLFLOW = Peer(
    name="mlflow",
    requirement="mlflow==3.17.2",
    argv=lambda bin: [f"{bin}/mlflow", "run", ".", "--env-manager", "local"],
    files={"MLproject": MLFLOW_PROJECT},
    environment={"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"},
)
RAY = Peer(
    name="ray",
    requirement="ray[default]==2.60.0",
    argv=lambda bin: [f"{bin}/ray", "job", "submit", "--working-dir", ".", "--", "python", SCRIPT],
    environment={"RAY_USAGE_STATS_ENABLED": "0"},
)
ALL = (TORCHX, METAFLOW, SUBMITIT, MLFLOW, RAY)


def install(peer: Peer) -> str:
    """The version that is there, installing it first when it is not."""
    mark = PEERS / peer.name / "installed"
    if not mark.exists() or mark.read_text(encoding="utf-8") != peer.requirement:
        make_venv(PEERS / peer.name, [peer.requirement])
        mark.write_text(peer.requirement, encoding="utf-8")
    return peer.requirement.partition("==")[2]


def make_venv(folder: Path, arguments: list[str]) -> None:
    """Fresh, with bytecode, from the same Python for every contestant."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") or "uv"
    links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", "")
    environment = clean_environment({"UV_FIND_LINKS": links} if links else {})
    python = Path(sys.prefix) / "bin" / "python"
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", str(python), str(folder)],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(folder / "bin" / "python"), *arguments],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
        if done.returncode != 0:
            raise CommandFailed(f"{' '.join(command)}\n{done.stderr[-4000:]}")


@contextmanager
def ray_head(folder: Path) -> Iterator[dict[str, str]]:
    """A Ray head on loopback with two CPUs; yields the environment that leads `ray job` to it."""
    (folder / "ray").mkdir()
    port, dashboard = _free_port(), _free_port()
    token = f"{TOKEN}-ray"
    environment = clean_environment({**RAY.surroundings(folder / "home"), TOKEN_NAME: token})
    arguments = {
        "--node-ip-address": "127.0.0.1",
        "--port": str(port),
        "--dashboard-host": "127.0.0.1",
        "--dashboard-port": str(dashboard),
        "--num-cpus": "2",
        "--temp-dir": str(folder / "ray"),
    }
    argv = [str(RAY.bin / "ray"), "start", "--head", "--block", *(word for pair in arguments.items() for word in pair)]
    with (folder / "ray.log").open("wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{dashboard}"
        _wait_for(f"{address}/api/version", 60)
        yield {"RAY_ADDRESS": address}
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        sweep(token)


def _wait_for(url: str, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port

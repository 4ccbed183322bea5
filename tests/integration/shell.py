"""A user at a shell: a project folder, a home of their own, and the real `stoker` command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stoker.cli.commands.watch.show import so_far
from stoker.client.api.client import Client
from stoker.client.api.connection import Connection
from stoker.client.api.handle import RunHandle
from stoker.client.local import launch
from stoker.client.settings import from_environment
from stoker.errors import StokerError, StoreDenied, StoreUnavailable
from stoker.model.run.run import Run
from stoker.model.wire import to_plain

PATIENCE_S = 60.0
HANGS_S = 180.0  # a command: one that adds a store took over 60 s on a computer with twenty times its work
ENDS = ("succeeded", "failed", "cancelled")


@dataclass
class Shell:
    home: Path
    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def job(self, run: str, **more: Any) -> Path:
        """Writes `stoker.yaml`. JSON is YAML, so the fields need no quoting."""
        return self.write("stoker.yaml", json.dumps({"name": "job", "run": run, **more}))

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "stdin": subprocess.DEVNULL}
        command = [str(Path(sys.executable).with_name("stoker")), *args]
        return subprocess.Popen(command, cwd=self.folder, env=self.environ, **(pipes | options))

    def raw(self, *args: str) -> bytes:
        """What the command prints, byte for byte."""
        with self.start(*args, text=False) as process:
            out: str | bytes = process.communicate(timeout=HANGS_S)[0]
        assert isinstance(out, bytes)
        return out

    def stoker(self, *args: str, code: int | None = 0, patience_s: float = HANGS_S) -> subprocess.CompletedProcess[str]:
        """Runs the command until it exits; `code` None accepts any."""
        with self.start(*args) as process:
            try:
                out, err = process.communicate(timeout=patience_s)
            except BaseException:  # also pytest's own time-out: otherwise the end of `with` would wait forever
                process.kill()
                raise
        done = subprocess.CompletedProcess(args, process.returncode, out, err)
        assert code in (None, done.returncode), f"stoker {' '.join(args)}: exit {done.returncode}\n{out}\n{err}"
        return done

    def refused(self, *args: str, code: int = 2) -> dict[str, Any]:
        """The error of a command that fails, as `--json` has it: its `code`, `cause`, `problems`, `message`, `hint`."""
        at = 1 if args[0] == "exec" else len(args)  # what follows the run there is the command
        done = self.stoker(*args[:at], "--json", *args[at:], code=code)
        error: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["error"]
        return error

    def facts(self, run: str) -> dict[str, Any]:
        """The `run` of `stoker show RUN --json`."""
        with self._asking() as client:
            if client:
                found: dict[str, Any] = to_plain(_with_metrics(client.run(run)))
                return found
        told: dict[str, Any] = json.loads(self.stoker("show", run, "--json").stdout)["run"]
        return told

    def wait_for(self, done: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        """Looks often, but spends at most a fifth of the time on looking: the processors are for what is waited for."""
        deadline = time.monotonic() + patience_s
        while True:
            began = time.monotonic()
            if found := done():
                return found
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(min(1.0, max(0.05, 4 * (time.monotonic() - began))))

    def ended(self, run: str) -> dict[str, Any]:
        self.wait_for(lambda: self._state(run) in ENDS, f"the end of {run}")
        return self.facts(run)

    def _state(self, run: str) -> str:
        with self._asking() as client:
            if client:
                return str(client.run(run).state)
        return str(self.facts(run)["state"])

    @contextmanager
    def _asking(self) -> Iterator[Client | None]:
        """A client in this process: a command takes a third of a second of a processor. None if there is no server.
        Whatever fails is left to the command, which starts a server where it needs one, as a user's would."""
        with suppress(StokerError, OSError):
            settings = from_environment(self.environ)
            address = launch.find(settings.home) if settings.local else None
            if address is None:
                yield None
                return
            connection = Connection(address)
            try:
                yield Client(settings, connection)
            finally:
                connection.close()

    def server_pid(self) -> int:
        with suppress(OSError, ValueError):
            return int(json.loads((self.home / "server.json").read_text())["pid"])
        return 0

    def kill_server(self) -> None:
        if pid := self.server_pid():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> dict[int, str]:
        """Live processes that belong to this home: the server, agents, and whatever runs started."""
        found: dict[int, str] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                environ, state = (entry / "environ").read_bytes(), (entry / "stat").read_text().rsplit(")", 1)[1]
                if str(self.home).encode() in environ and " Z " not in state[:4]:
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def agents(self) -> list[int]:
        """Running agents: each has its name next to its work."""
        found: list[int] = []
        for errand in (self.home / "nodes").glob("*/errand.json"):
            with suppress(OSError, ValueError, KeyError):
                found.append(int(json.loads(errand.read_bytes())["agent"]))
        return [pid for pid in found if pid in self.processes()]


def _with_metrics(run: RunHandle) -> Run:
    """As `stoker show` has it: the metrics of an active run are those so far."""
    if run.facts.metrics or run.state.ended:
        return run.facts
    with suppress(StoreDenied, StoreUnavailable):
        return replace(run.facts, metrics=so_far(run.metrics()))
    return run.facts


@contextmanager
def made_shell(root: Path) -> Iterator[Shell]:
    """Nothing outlives it."""
    home, folder = root / "home", root / "project"
    folder.mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    environ = {**keep, "STOKER_HOME": str(home), "STOKER_SLOTS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    shell = Shell(home, folder, environ)
    yield shell
    for _ in range(50):
        left = shell.processes()
        if not left:
            break
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)

"""Stoker as a contestant: a real installation in a venv of its own, with a home that is thrown away."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

from benchmarks.commands import Command, clean_environment
from benchmarks.peers import PEERS, make_venv
from stoker.client.api.client import Client
from stoker.client.local import launch
from stoker.client.settings import ClientSettings, from_environment

REPOSITORY = Path(__file__).parent.parent
VENV = PEERS / "stoker"


@cache
def installed() -> str:
    """Installs the repository as it is now, once per process; returns the version with its commit."""
    make_venv(VENV, ["--reinstall-package", "stoker", str(REPOSITORY)])
    version = _said([str(VENV / "bin" / "python"), "-c", "import importlib.metadata as m; print(m.version('stoker'))"])
    commit = _said(["git", "rev-parse", "--short=12", "HEAD"])
    changed = _said(["git", "status", "--porcelain", "--", "src"])
    return f"{version}+{commit}{' with uncommitted changes' if changed else ''}"


@dataclass(frozen=True, slots=True)
class Usage:
    """A server's peak memory and processor time; its agents are not counted."""

    peak_memory_mb: float = 0.0
    processor_s: float = 0.0


class Stoker:
    """One home and its server. Leaving the context stops the server."""

    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.environment = {"HOME": str(home.parent), "STOKER_HOME": str(home), **(environment or {})}

    @property
    def python(self) -> Path:
        return VENV / "bin" / "python"

    @property
    def settings(self) -> ClientSettings:
        return from_environment({**clean_environment(self.environment), "VIRTUAL_ENV": str(VENV)})

    def command(
        self,
        name: str,
        *arguments: str,
        folder: Path,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> Command:
        argv = (str(VENV / "bin" / "stoker"), *arguments)
        return Command(name, argv, folder, self.environment, before, after)

    def start(self) -> None:
        """Has the installed command start the server, so that the server is the installed one too. Twice is fine."""
        if launch.status(self.settings) is None:
            argv = [str(VENV / "bin" / "stoker"), "ps"]
            environment = clean_environment(self.environment)
            subprocess.run(argv, env=environment, cwd=self.home, check=True, capture_output=True, timeout=60)

    def stop(self) -> None:
        launch.stop(self.settings)

    def client(self) -> Client:
        self.start()
        return Client.connect(self.settings, start=False)

    def usage(self) -> Usage:
        """What the server has used so far."""
        status = launch.status(self.settings)
        assert status is not None
        process = Path("/proc") / str(status["pid"])
        lines = (process / "status").read_text(encoding="utf-8").splitlines()
        peak_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
        # The fields after the name, which is in parentheses and may contain spaces.
        ticks = [int(word) for word in (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]]
        return Usage(peak_kib * 1024 / 1e6, sum(ticks) / os.sysconf("SC_CLK_TCK"))

    def __enter__(self) -> Stoker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _said(argv: list[str]) -> str:
    return subprocess.run(
        argv, cwd=REPOSITORY, env=clean_environment({}), check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()

"""Environments for programs: which exist, and the lock of what a run really had."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.settings import ClientSettings
from stoker.client.software.locking import CLOUD, here
from stoker.client.software.packages import PYTHON
from stoker.client.software.wheels import tool
from stoker.errors import Conflict
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.environment import BuiltEnvironment, tool_settings
from stoker.model.job.sections import LOCK
from stoker.model.run.run import Run, RunState
from stoker.model.snapshot import Snapshot

_OURS = ("stoker", "pip", "setuptools", "wheel")  # of Stoker itself, and of making a venv
_WITHIN_S = 120.0


@dataclass(frozen=True, slots=True)
class PlacedEnvironment:
    """`store` is empty for one on the server's computer."""

    built: BuiltEnvironment
    ref: str
    store: str = ""


@dataclass(frozen=True, slots=True)
class FrozenLock:
    """`notes` say what it lacks."""

    text: str
    notes: tuple[str, ...] = ()


class Environments:
    def __init__(self, connection: Connection, settings: ClientSettings) -> None:
        self._connection = connection
        self._settings = settings

    def all(self) -> list[PlacedEnvironment]:
        """Newest first; one that is in several places is listed for each."""
        return self._rows(self._connection.get("/v1/environments", self._query)["environments"])

    def show(self, ref: str) -> list[PlacedEnvironment]:
        """Each place of one environment. `ref` is its name, `name@id` or its id."""
        return self._rows(self._connection.get(self._path(ref), self._query)["environments"])

    def remove(self, ref: str) -> list[PlacedEnvironment]:
        """From every place. A run that needs it builds it again."""
        path = f"{self._path(ref)}?person={quote(self._settings.person, safe='')}"
        return self._rows(self._connection.delete(path)["environments"])

    def freeze(self, run: Run) -> FrozenLock:
        """The lock of what a run really had. Raises Conflict where that is unknown."""
        return freeze(run, self._connection, self._settings)

    @property
    def _query(self) -> dict[str, str]:
        return {"person": self._settings.person}

    def _path(self, ref: str) -> str:
        return f"/v1/environments/{quote(ref, safe='@')}"

    def _rows(self, rows: list[object]) -> list[PlacedEnvironment]:
        return [wire.from_plain(PlacedEnvironment, row) for row in rows]


def freeze(run: Run, connection: Connection, settings: ClientSettings) -> FrozenLock:
    if run.lock and (text := _content(run, LOCK, connection)):
        return FrozenLock(text, _worked(run))
    packages = {name: version for name, version in run.packages.items() if name not in (*_OURS, PYTHON)}
    if not run.packages.get(PYTHON):
        raise Conflict(
            f"it is unknown which packages `{run.name}` had: its node has not reported them",
            hint="run it again, until its script has started",
            cause=Cause.PACKAGES_UNKNOWN,
        )
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))
    minor = ".".join(run.packages[PYTHON].split(".")[:2])
    platform = here() if not run.software else CLOUD
    hashed = _hashed(pins, minor, run, settings) if pins else ""
    head = f"# python {minor} on {platform}\n"
    if hashed or not pins:
        return FrozenLock(head + hashed, _worked(run))
    note = "it has no hashes, because the index does not have all of these versions, or does not answer"
    return FrozenLock(head + pins, (*_worked(run), note))


def _worked(run: Run) -> tuple[str, ...]:
    return () if run.state is RunState.SUCCEEDED else (f"`{run.name}` has not succeeded: it is {run.state}",)


def _content(run: Run, path: str, connection: Connection) -> str:
    snapshot = wire.from_plain(Snapshot, connection.get(f"/v1/snapshots/{run.snapshot}"))
    entry = next((one for one in snapshot.entries if one.path == path), None)
    if entry is None:
        return ""
    _, pieces = connection.stream(f"/v1/blobs/{entry.sha256}")
    return b"".join(pieces).decode()


def _hashed(pins: str, minor: str, run: Run, settings: ClientSettings) -> str:
    """Empty where the resolver does not find all of them. They worked together, whatever their metadata says."""
    words = ["pip", "compile", "--quiet", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
    where = ["--python-platform", CLOUD] if run.software else []
    env = tool_settings({**settings.for_tools(), **run.job.env})
    uv = tool(env)
    if not uv:
        return ""
    try:
        told = subprocess.run(
            [uv, *words, "--python-version", minor, *where, "-"],
            input=pins,
            env=env,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout if not told.returncode else ""

"""Starts, finds, controls and stops the twin: the simulated cloud of this computer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker import files
from stoker.client.settings import ClientSettings
from stoker.errors import AzuriteMissing, Conflict, TwinFailed
from stoker.model.cause import Cause
from stoker.model.run.run import Run
from stoker.model.workspace.store import is_twin

if TYPE_CHECKING:
    import subprocess

Told = dict[str, Any]  # the twin's description in `twin.json`

_BLOB_S = 90.0


def blob(told: Told) -> dict[str, str]:
    """Starts the twin's Blob service, and returns its address. Raises AzuriteMissing if it cannot start."""
    return ask(told, "blob", {}, timeout_s=_BLOB_S)


def evict_node(told: Told, node: str, notice_s: float, *, withdrawn: bool = False) -> None:
    """Evicts the machine of a node, as the cloud does: its metadata service delivers the notice."""
    machines = [one["vm"] for one in ask(told, "status")["machines"] if node in one["tags"].values()]
    if not machines:
        raise Conflict(f"the twin has no machine for node {node}", hint="stoker twin status")
    ask(told, "evict", {"vm": machines[0], "notice_s": notice_s, "withdrawn": withdrawn})


def person(told: Told, name: str) -> dict[str, str]:
    """A user who can log in: their object id, which roles are assigned to, and their login. Again: the same user, with
    another secret."""
    import secrets  # as below

    secret = secrets.token_urlsafe(24)
    made = ask(told, "principal", {"name": name, "secret": secret})
    login = {
        "AZURE_TENANT_ID": str(told["tenant"]),
        "AZURE_CLIENT_ID": str(made["client_id"]),
        "AZURE_CLIENT_SECRET": secret,
    }
    return {"object_id": str(made["object_id"]), **login}


def ask(told: Told, word: str, order: dict[str, Any] | None = None, *, timeout_s: float = 10.0) -> dict[str, Any]:
    """A request to the twin's own API."""
    import ssl  # 20 ms, and rarely used
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    body = None if order is None else json.dumps(order).encode()
    context = ssl.create_default_context(cafile=told["authority"])
    request = Request(f"{told['url']}/twin/{word}", body, {"Authorization": f"Bearer {told['token']}"})
    try:
        with urlopen(request, context=context, timeout=timeout_s) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except HTTPError as error:
        raise _refused(error.read()) from error
    except (URLError, OSError, ValueError) as error:
        raise TwinFailed(f"the twin at {told['url']} does not respond: {error}", hint="stoker twin down") from error


def _refused(answer: bytes) -> TwinFailed:
    try:
        said = json.loads(answer)["error"]
    except (ValueError, LookupError, TypeError):
        said = {}
    kind = AzuriteMissing if said.get("code") == AzuriteMissing.code else TwinFailed
    return kind(said.get("message") or "the twin refused the request", hint=said.get("hint", ""))


_START_S = 30.0
_STOP_S = 30.0
_TURN_S = 60.0  # to wait for other commands that start it at the same time
_PAUSE_S = 0.02

_children: list[subprocess.Popen[bytes]] = []  # kept so that ended ones are reaped


@dataclass(frozen=True, slots=True)
class TwinOptions:
    """The options of a twin's start. None and empty leave a setting unchanged."""

    seed: int | None = None
    weather: str = ""
    speed: float = 1.0
    port: int = 0
    plain: bool = False  # no namespaces
    blob: bool = False  # with its Blob service

    def variables(self) -> dict[str, str]:
        given = {
            "STOKER_TWIN_SEED": "" if self.seed is None else str(self.seed),
            "STOKER_TWIN_WEATHER": self.weather,
            "STOKER_TWIN_SPEED": str(self.speed),
            "STOKER_TWIN_PORT": str(self.port) if self.port else "",
            "STOKER_TWIN_PLAIN": "1" if self.plain else "",
            "STOKER_TWIN_BLOB": "1" if self.blob else "",
        }
        return {name: value for name, value in given.items() if value}


def find(settings: ClientSettings) -> dict[str, Any] | None:
    """The twin's address and login; None if it is not running."""
    try:
        told: dict[str, Any] = json.loads((settings.home.twin / "twin.json").read_bytes())
    except (OSError, ValueError):
        return None
    return told if files.is_held(settings.home.twin / "twin.alive") else None


def up(settings: ClientSettings, wanted: TwinOptions) -> tuple[dict[str, Any], bool]:
    """The address of a twin that responds, and whether it was started just now. The first command starts it; the others
    wait for it."""
    if told := find(settings):
        return told, False
    with _turn(settings):
        if told := find(settings):
            return told, False
        return _started(settings, wanted), True


@contextmanager
def _turn(settings: ClientSettings) -> Iterator[None]:
    """One at a time, or two would overwrite each other's address."""
    folder = settings.home.twin
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.held(folder / "twin.start", _TURN_S):
            yield
    except TimeoutError:
        raise TwinFailed(f"another command has tried to start the twin for {_TURN_S:.0f} s") from None


def _started(settings: ClientSettings, wanted: TwinOptions) -> dict[str, Any]:
    folder = settings.home.twin
    log = folder / "twin.log"
    (folder / "twin.json").unlink(missing_ok=True)  # left by a killed twin
    said_before = log.stat().st_size if log.exists() else 0
    child = _spawn(settings, wanted, log)
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up:
        ended = child.poll() is not None  # checked first, so that its last output is not missed
        if told := find(settings):
            return told
        if ended:
            message, hint = _last_words(log, said_before)
            raise TwinFailed(f"the twin could not start: {message}", hint=hint or f"see its log: {log}")
        time.sleep(_PAUSE_S)
    raise TwinFailed(f"the twin did not respond within {_START_S:.0f} s", hint=f"see its log: {log}")


def down(settings: ClientSettings, *, forget: bool = False) -> bool:
    """Stops the twin and its machines, also those that a killed twin has left running. With `forget` all its data is
    deleted. False: it was not running."""
    told = find(settings) or _left_behind(settings)
    if told:
        with _turn(settings):
            _end(int(told["pid"]), settings.home.twin / "twin.alive")
    else:
        (settings.home.twin / "twin.json").unlink(missing_ok=True)  # left by a killed twin
    _children[:] = [child for child in _children if child.poll() is None]
    if forget:
        shutil.rmtree(settings.home.twin, ignore_errors=True)
    return told is not None


def _end(pid: int, alive: Path) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + _STOP_S
    while files.is_held(alive):
        if time.monotonic() > give_up:
            raise TwinFailed(f"the twin (pid {pid}) does not exit", hint=f"kill it with `kill -9 {pid}`")
        time.sleep(_PAUSE_S)


def _left_behind(settings: ClientSettings) -> dict[str, Any] | None:
    """Only a twin can stop its machines, so one is started if necessary."""
    machines = settings.home.twin / "machines"
    left = machines.is_dir() and any(entry.is_dir() for entry in machines.iterdir())
    return up(settings, TwinOptions())[0] if left else None


def evict(settings: ClientSettings, run: Run, notice_s: float, *, withdrawn: bool = False) -> None:
    """Evicts the machine of a run, as the cloud does: its metadata service delivers the notice."""
    told, attempt = find(settings), run.attempt
    if not is_twin(run.job.on):
        raise Conflict(
            f"`{run.name}` is on `{run.job.on}`, not on the twin",
            hint=f"stoker evict {run.name}",
            cause=Cause.NOT_ON_TWIN,
        )
    if told is None:
        raise Conflict("the twin is not running", hint="stoker twin up")
    if attempt is None or attempt.state.over:
        raise Conflict(
            f"`{run.name}` has no machine to evict: it is {run.state}",
            hint=f"stoker show {run.name}",
            cause=Cause.NO_NODE,
        )
    evict_node(told, attempt.key, notice_s, withdrawn=withdrawn)


def status(settings: ClientSettings) -> dict[str, Any] | None:
    """The twin's status, or None if it is not running."""
    told = find(settings)
    return {**ask(told, "status"), "url": told["url"], "pid": told["pid"]} if told else None


def _spawn(settings: ClientSettings, wanted: TwinOptions, log: Path) -> subprocess.Popen[bytes]:
    import subprocess  # 12 ms, and needed only here
    import sys

    given = settings.for_server()
    own = {name for name in given if name.startswith("STOKER_TWIN_")} - {"STOKER_TWIN_SHOWN"}
    environ = {name: value for name, value in given.items() if name not in own}
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "stoker.twin"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=settings.home.twin,
            env={**environ, **wanted.variables()},
            start_new_session=True,
        )
    _children.append(child)
    return child


def _last_words(log: Path, said_before: int) -> tuple[str, str]:
    with log.open("rb") as file:
        file.seek(said_before)
        said = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    message = next((line.removeprefix("error:").strip() for line in said if line.startswith("error:")), "")
    hint = next((line.removeprefix("hint:").strip() for line in said if line.startswith("hint:")), "")
    return message or (said[-1] if said else "it exited without a message"), hint

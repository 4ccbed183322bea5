"""Starting, finding and stopping the twin: the simulated cloud of this computer."""

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

from stoker.client.local import twinorders
from stoker.client.settings import Settings
from stoker.errors import Conflict, TwinFailed
from stoker.files import lock
from stoker.model.run.run import Run
from stoker.model.workspace.store import is_twin

if TYPE_CHECKING:
    import subprocess

_START_S = 30.0
_STOP_S = 30.0
_TURN_S = 60.0  # waiting for others that are starting it at the same time
_PAUSE_S = 0.02

_children: list[subprocess.Popen[bytes]] = []  # kept so that one that ends can be reaped


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a twin is started with. None and empty leave it as it was."""

    seed: int | None = None
    weather: str = ""
    speed: float = 1.0
    port: int = 0
    plain: bool = False  # no namespaces
    blob: bool = False  # its Blob service, too

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


def find(settings: Settings) -> dict[str, Any] | None:
    """Where the twin is and how to log in to it; None where none runs."""
    try:
        told: dict[str, Any] = json.loads((settings.home.twin / "twin.json").read_bytes())
    except (OSError, ValueError):
        return None
    return told if lock.is_held(settings.home.twin / "twin.alive") else None


def up(settings: Settings, wanted: Wanted) -> tuple[dict[str, Any], bool]:
    """The address of a twin that answers, and whether it was started just now. Whoever comes first starts it; the
    others wait and find it."""
    if told := find(settings):
        return told, False
    with _turn(settings):
        if told := find(settings):
            return told, False
        return _started(settings, wanted), True


@contextmanager
def _turn(settings: Settings) -> Iterator[None]:
    """One at a time, or two would take each other's address away."""
    folder = settings.home.twin
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with lock.held(folder / "twin.start", _TURN_S):
            yield
    except TimeoutError:
        raise TwinFailed(f"another command has been starting the twin for {_TURN_S:.0f} s") from None


def _started(settings: Settings, wanted: Wanted) -> dict[str, Any]:
    folder = settings.home.twin
    log = folder / "twin.log"
    (folder / "twin.json").unlink(missing_ok=True)  # a killed twin has left it
    said_before = log.stat().st_size if log.exists() else 0
    child = _spawn(settings, wanted, log)
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up:
        ended = child.poll() is not None  # asked before looking: its last words must not be missed
        if told := find(settings):
            return told
        if ended:
            message, hint = _last_words(log, said_before)
            raise TwinFailed(f"the twin could not start: {message}", hint=hint or f"its log is {log}")
        time.sleep(_PAUSE_S)
    raise TwinFailed(f"the twin did not answer within {_START_S:.0f} s", hint=f"its log is {log}")


def down(settings: Settings, *, forget: bool = False) -> bool:
    """Ends the twin and switches its machines off, also those that a killed twin has left running. With `forget` all
    it knew is removed. False: none was running."""
    told = find(settings) or _left_behind(settings)
    if told:
        with _turn(settings):
            _end(int(told["pid"]), settings.home.twin / "twin.alive")
    else:
        (settings.home.twin / "twin.json").unlink(missing_ok=True)  # of one that was killed: it is not wanted back
    _children[:] = [child for child in _children if child.poll() is None]
    if forget:
        shutil.rmtree(settings.home.twin, ignore_errors=True)
    return told is not None


def _end(pid: int, alive: Path) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + _STOP_S
    while lock.is_held(alive):
        if time.monotonic() > give_up:
            raise TwinFailed(f"the twin (pid {pid}) does not end", hint=f"end it with `kill -9 {pid}`")
        time.sleep(_PAUSE_S)


def _left_behind(settings: Settings) -> dict[str, Any] | None:
    """Only a twin can switch machines off, so one is started for those that have none."""
    machines = settings.home.twin / "machines"
    left = machines.is_dir() and any(entry.is_dir() for entry in machines.iterdir())
    return up(settings, Wanted())[0] if left else None


def evict(settings: Settings, run: Run, notice_s: float, *, withdrawn: bool = False) -> None:
    """Takes the machine of a run away, from the cloud's side: the metadata service inside it gives the notice."""
    told, attempt = find(settings), run.attempt
    if not is_twin(run.job.on):
        raise Conflict(f"`{run.name}` is on `{run.job.on}`, not on the twin", hint=f"stoker evict {run.name}")
    if told is None:
        raise Conflict("no twin is running", hint="stoker twin up")
    if attempt is None or attempt.state.over:
        raise Conflict(f"`{run.name}` has no machine to take: it is {run.state}", hint=f"stoker show {run.name}")
    twinorders.evict(told, attempt.key, notice_s, withdrawn=withdrawn)


def status(settings: Settings) -> dict[str, Any] | None:
    """What the twin says of itself, or None where none runs."""
    told = find(settings)
    return {**twinorders.ask(told, "status"), "url": told["url"], "pid": told["pid"]} if told else None


def _spawn(settings: Settings, wanted: Wanted, log: Path) -> subprocess.Popen[bytes]:
    import subprocess  # 12 ms, and only this command needs it
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
    return message or (said[-1] if said else "it ended without a word"), hint

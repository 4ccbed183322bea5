"""The set-up code of a provider, found by entry point, and runs on the twin instead of the cloud."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from stoker.client.api.connection import Connection
from stoker.client.api.resources import Stores
from stoker.client.local import twin
from stoker.client.local.twin import Told
from stoker.client.settings import ClientSettings
from stoker.errors import AzuriteMissing, BadInput, NotFound, StokerError, TwinFailed
from stoker.files import write_whole
from stoker.model.cause import Cause
from stoker.model.workspace.groundwork import Groundwork
from stoker.model.workspace.handover import AccountForm, Handover, read_handover
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import is_twin, original

STORE = "twin"

Say = Callable[[str], None]


def begin(on: str, settings: ClientSettings) -> None:
    """Starts the twin in parallel with other work. `stage` reports failures."""
    _check(on, settings)

    def start() -> None:
        with suppress(StokerError, OSError):
            twin.blob(twin.up(settings, twin.TwinOptions(blob=True))[0])

    if not _is_ready(settings):
        threading.Thread(target=start, name="twin", daemon=True).start()


def stage(on: str, settings: ClientSettings, connection: Connection, say: Say) -> str:
    """The twin is up, its Blob service responds, and the server has it as a store, whose name is returned."""
    _check(on, settings)
    if not _is_ready(settings):
        say("starting the twin, a simulated cloud on this computer")
    told, _ = twin.up(settings, twin.TwinOptions(blob=True))
    return store(told, settings, connection, say)


def store(told: Told, settings: ClientSettings, connection: Connection, say: Say) -> str:
    """The name of the store of the twin's Blob service, which is installed, started and registered if necessary."""
    place = blob(told, settings, say)
    stores = Stores(connection)
    before = next((one.url for one in stores.all() if one.name == STORE), "")
    if before != place["url"]:
        # After `twin down --forget` it has another address. A store of this name that is not its own stays.
        moved_from = before if f"/{place['account']}/" in before else ""
        key = {"key": place["key"]}
        stores.add(STORE, place["url"], "account-key", key, check=False, moved_from=moved_from)
    return STORE


def blob(told: Told, settings: ClientSettings, say: Say) -> dict[str, str]:
    """The address of the twin's Blob service, which is installed and started if necessary."""
    if place := told.get("blob"):
        return dict(place)
    try:
        return twin.blob(told)
    except AzuriteMissing:
        install(settings.home, say)
        return twin.blob(told)


def _is_ready(settings: ClientSettings) -> bool:
    return bool((twin.find(settings) or {}).get("blob"))


def _check(on: str, settings: ClientSettings) -> None:
    if not settings.local:
        raise BadInput(
            f"the server at {settings.server} cannot reach a twin on this computer",
            hint="unset STOKER_SERVER",
            cause=Cause.ELSEWHERE,
        )
    known = {entry.name for entry in entry_points(group="stoker.providers")}
    if on not in known:
        clouds = [original(name) for name in sorted(known) if is_twin(name)]
        hint = f"stoker run --on {clouds[0]} --twin" if clouds else ""
        raise BadInput(f"`{original(on)}` has no twin", hint=hint, cause=Cause.NO_TWIN)


# Installs Azurite, the Blob service of the twin, if it is missing: once, with npm.

VERSION = "3.35.0"
_INSTALL_S = 900.0
SAY_EVERY_S = 5.0


def install(home: Home, say: Callable[[str], None]) -> None:
    """Into Stoker's own folder. May be repeated."""
    npm = shutil.which("npm")
    if npm is None:
        raise AzuriteMissing(
            "the twin's Blob service, Azurite, requires Node.js and npm, but `npm` was not found",
            hint="apt-get install nodejs npm",
        )
    say(f"installing Azurite {VERSION}, the twin's Blob service, into {home.azurite}; this takes about a minute, once")
    home.azurite.mkdir(mode=0o700, parents=True, exist_ok=True)
    manners = ["--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"]
    words = [npm, "install", "--prefix", str(home.azurite), *manners, f"azurite@{VERSION}"]
    try:
        code, said = _watched(words, home.azurite, say)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TwinFailed(f"Azurite could not be installed: {error}", hint=" ".join(words)) from error
    if code:
        last = (said.strip().splitlines() or ["npm gave no reason"])[-1]
        raise TwinFailed(f"Azurite could not be installed: {last}", hint=" ".join(words))
    say("installed Azurite")


def _watched(words: Sequence[str], folder: Path, say: Callable[[str], None]) -> tuple[int, str]:
    """npm's exit code, and its error output; it prints nothing during its work."""
    begun = time.monotonic()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as npm:  # type: ignore[call-overload]  # pipes are as they should
        while True:
            try:
                _, said = npm.communicate(timeout=SAY_EVERY_S)
            except subprocess.TimeoutExpired:
                passed_s = time.monotonic() - begun
                if passed_s > _INSTALL_S:
                    npm.kill()
                    raise
                say(f"installing Azurite: {_size_bytes(folder) / 1e6:.0f} MB after {passed_s:.0f} s")
                continue
            return npm.returncode, said


def _size_bytes(folder: Path) -> int:
    total = 0
    for one in folder.rglob("*"):
        with suppress(OSError):  # npm moves files meanwhile
            total += one.lstat().st_size
    return total


_GROUP = "stoker.groundworks"


def names() -> list[str]:
    """Providers that an administrator can set up."""
    return sorted(entry.name for entry in entry_points(group=_GROUP))


def find(name: str) -> Groundwork:
    for entry in entry_points(group=_GROUP, name=name):
        made: Groundwork = entry.load()()
        return made
    raise NotFound(f"provider `{name}` requires no set-up", hint=f"supported: {', '.join(names())}")


def forms() -> dict[str, AccountForm]:
    """The fields of an account in a hand-over file, by provider."""
    return {name: find(name).form for name in names()}


def rehearse(settings: ClientSettings, say: Callable[[str], None]) -> dict[str, Any]:
    """The twin's address and login: it is up, and so is its Blob service."""
    from stoker.client.local import twin  # needed only for a rehearsal

    told, _ = twin.up(settings, twin.TwinOptions(blob=True))
    blob(told, settings, say)
    return told


def check_writable(path: Path, workspace: str) -> None:
    """Before anything is created: a file that is not a hand-over of this workspace is not overwritten."""
    if not path.parent.is_dir():
        raise BadInput(f"folder {path.parent} not found", hint=f"mkdir -p {path.parent}", cause=Cause.FILE_UNWRITABLE)
    if not path.exists():
        return
    try:
        known = read_handover(path.read_text(encoding="utf-8"), str(path), forms()).name
    except (BadInput, OSError, ValueError):
        known = ""
    if known != workspace:
        what = f"it belongs to workspace {known}" if known else "it is not a hand-over file"
        raise BadInput(f"{path} exists, and {what}", hint="choose another file with --out", cause=Cause.FILE_EXISTS)


def write(handover: Handover, path: Path) -> bool:
    """Written atomically. False: it existed, with the same content."""
    text = handover.to_text()
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    write_whole(path, text)
    return True

"""A run on the twin instead of the cloud: whoever submits one brings the twin up first, and keeps the run in the twin's
own store."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

from stoker.client.api.connection import Connection
from stoker.client.api.stores import Stores
from stoker.client.local import twin, twinorders
from stoker.client.local.twinorders import Told
from stoker.client.settings import Settings
from stoker.errors import AzuriteMissing, BadInput, StokerError, TwinFailed
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import is_twin, original

STORE = "twin"

Say = Callable[[str], None]


def begin(on: str, settings: Settings) -> None:
    """Has the twin started beside whatever else is to be done first. What goes wrong is told by `stage`."""
    _check(on, settings)

    def start() -> None:
        with suppress(StokerError, OSError):
            twinorders.blob(twin.up(settings, twin.Wanted(blob=True))[0])

    if not _is_ready(settings):
        threading.Thread(target=start, name="twin", daemon=True).start()


def stage(on: str, settings: Settings, connection: Connection, say: Say) -> str:
    """The twin is up, its Blob service answers, and the server knows that as a store, whose name this is."""
    _check(on, settings)
    if not _is_ready(settings):
        say("starting the twin: a cloud on this computer")
    told, _ = twin.up(settings, twin.Wanted(blob=True))
    return store(told, settings, connection, say)


def store(told: Told, settings: Settings, connection: Connection, say: Say) -> str:
    """The name of the store that the twin's Blob service is, which is installed, started and made known if need be."""
    place = blob(told, settings, say)
    stores = Stores(connection)
    before = next((one.url for one in stores.all() if one.name == STORE), "")
    if before != place["url"]:
        # A twin that was told to forget has another place now. A store of this name that is not its own stays.
        moved_from = before if f"/{place['account']}/" in before else ""
        key = {"key": place["key"]}
        stores.add(STORE, place["url"], "account-key", key, check=False, moved_from=moved_from)
    return STORE


def blob(told: Told, settings: Settings, say: Say) -> dict[str, str]:
    """Where the twin's Blob service is. It is installed and started if need be."""
    if place := told.get("blob"):
        return dict(place)
    try:
        return twinorders.blob(told)
    except AzuriteMissing:
        install(settings.home, say)
        return twinorders.blob(told)


def _is_ready(settings: Settings) -> bool:
    return bool((twin.find(settings) or {}).get("blob"))


def _check(on: str, settings: Settings) -> None:
    if not settings.local:
        raise BadInput(
            f"the server at {settings.server} cannot reach a twin on this computer", hint="unset STOKER_SERVER"
        )
    known = {entry.name for entry in entry_points(group="stoker.providers")}
    if on not in known:
        clouds = [original(name) for name in sorted(known) if is_twin(name)]
        hint = f"stoker run --on {clouds[0]} --twin" if clouds else ""
        raise BadInput(f"`{original(on)}` has no twin", hint=hint)


# Installing Azurite, the Blob service of the twin, where this computer has none: once, with npm.

VERSION = "3.35.0"
_INSTALL_S = 900.0
SAY_EVERY_S = 5.0


def install(home: Home, say: Callable[[str], None]) -> None:
    """Into Stoker's own folder. Twice is fine."""
    npm = shutil.which("npm")
    if npm is None:
        raise AzuriteMissing(
            "the twin keeps blobs with Azurite, which needs Node.js and npm, and there is no `npm`",
            hint="apt-get install nodejs npm",
        )
    say(f"installing Azurite {VERSION}, the twin's Blob service, into {home.azurite}: once, for about a minute")
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
    say("Azurite is installed")


def _watched(words: Sequence[str], folder: Path, say: Callable[[str], None]) -> tuple[int, str]:
    """The exit code of npm, which is silent as it works, and what it says of a failure."""
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
        with suppress(OSError):  # npm moves files as it works
            total += one.lstat().st_size
    return total

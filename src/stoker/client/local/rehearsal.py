"""A run on the twin instead of the cloud: the client starts the twin first, and uses the twin's own store for the
run."""

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
from stoker.client.settings import ClientSettings
from stoker.errors import AzuriteMissing, BadInput, StokerError, TwinFailed
from stoker.model.workspace.home import Home
from stoker.model.workspace.store import is_twin, original

STORE = "twin"

Say = Callable[[str], None]


def begin(on: str, settings: ClientSettings) -> None:
    """Starts the twin in parallel with other work. `stage` reports failures."""
    _check(on, settings)

    def start() -> None:
        with suppress(StokerError, OSError):
            twinorders.blob(twin.up(settings, twin.TwinOptions(blob=True))[0])

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
        return twinorders.blob(told)
    except AzuriteMissing:
        install(settings.home, say)
        return twinorders.blob(told)


def _is_ready(settings: ClientSettings) -> bool:
    return bool((twin.find(settings) or {}).get("blob"))


def _check(on: str, settings: ClientSettings) -> None:
    if not settings.local:
        raise BadInput(
            f"the server at {settings.server} cannot reach a twin on this computer", hint="unset STOKER_SERVER"
        )
    known = {entry.name for entry in entry_points(group="stoker.providers")}
    if on not in known:
        clouds = [original(name) for name in sorted(known) if is_twin(name)]
        hint = f"stoker run --on {clouds[0]} --twin" if clouds else ""
        raise BadInput(f"`{original(on)}` has no twin", hint=hint)


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

"""A run on the twin instead of the cloud: whoever submits one brings the twin up first, and keeps the run in the twin's
own store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points

from stoker.client import azurite, twin, twinorders
from stoker.client.connection import Connection
from stoker.client.settings import Settings
from stoker.client.stores import Stores
from stoker.client.twinorders import Told
from stoker.errors import AzuriteMissing, BadInput, StokerError
from stoker.model.rehearsal import is_twin, original

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
        azurite.install(settings.home, say)
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

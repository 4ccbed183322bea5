"""`python -m stoker.twin`: a twin with real machines, until it is stopped."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from stoker.errors import Conflict, StokerError
from stoker.files import claim, write_whole
from stoker.model.cause import Cause
from stoker.twin import state
from stoker.twin.arm import storage
from stoker.twin.blob import Accounts, BlobService
from stoker.twin.machines import Machines
from stoker.twin.machines.opening import open_machines
from stoker.twin.settings import TwinSettings, from_environment
from stoker.twin.state import DEFAULT_BLOB
from stoker.twin.time.weather import Weather, forecast
from stoker.twin.twin import Twin
from stoker.twin.web import server
from stoker.twin.world import TwinWorld

log = logging.getLogger("stoker.twin")

_LOCK_S = 15.0


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        serve(from_environment())
    except StokerError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - the command line shows these lines
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)  # noqa: T201 - likewise
        return error.exit_code
    return 0


def serve(settings: TwinSettings) -> None:
    """SIGTERM stops the twin and powers its machines off; a kill leaves them running for the next twin."""
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    alive = _take_lock(settings.folder)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    blob = BlobService(settings.folder / "blob", settings.azurite, wanted=settings.blob)  # the slowest to start
    address = settings.folder / "twin.json"
    try:
        twin = _twin(settings, blob)
        twin.start()
        _tell(address, twin)
        log.info("listening on %s", twin.address.url)
        blob.attend(_accounts(twin.world), partial(_with_blob, address, twin, blob))
        over.wait()
        blob.attend(dict, lambda: None)
        address.unlink(missing_ok=True)  # a leftover file means that the twin was killed, and should be restarted
        twin.power_down()
        twin.close()
    finally:
        address.unlink(missing_ok=True)
        blob.close()
        os.close(alive)


def _twin(settings: TwinSettings, blob: BlobService) -> Twin:
    twin = Twin(
        settings.folder,
        lambda world: _machines(settings, world),
        weather=_weather(settings),
        speed=settings.speed,
        port=settings.port,
        blob=blob,
    )
    if twin.world.cloud.blob == DEFAULT_BLOB:  # no other endpoint was configured
        twin.world.change(lambda cloud, _: (replace(cloud, blob=blob.place.endpoint), None))
    return twin


def _with_blob(address: Path, twin: Twin, blob: BlobService) -> None:
    """Machines reach the Blob service at the same address as everybody else."""
    twin.machines.expose(blob.place.port)
    _tell(address, twin, blob.place.told)


def _accounts(world: TwinWorld) -> Callable[[], Accounts]:
    """Called ten times a second, so it computes only after a change."""
    seen: tuple[object, Accounts] = (None, {})

    def asked() -> Accounts:
        nonlocal seen
        cloud = world.cloud
        if cloud.resources is not seen[0]:
            seen = (cloud.resources, storage.served(cloud))
        return seen[1]

    return asked


def _machines(settings: TwinSettings, world: TwinWorld) -> Machines:
    return open_machines(
        settings.folder / "machines",
        world.token_for,
        acknowledged=world.acknowledged,
        first_events_s=lambda _: world.clock.real_s(world.cloud.weather.first_events_s),
        walls=_walls(settings),
        shown=settings.shown,
        authority=server.certificate(settings.folder / "tls").authority,
        outward=True,  # a rehearsal needs to install packages
    )


def _walls(settings: TwinSettings) -> bool | None:
    """As requested; but existing machines without isolation stay so, since no other kind can take them over."""
    mark = settings.folder / "plain"
    if settings.walls is False:
        mark.touch()
    elif mark.exists() and not any(entry.is_dir() for entry in (settings.folder / "machines").glob("*")):
        mark.unlink()
    return False if mark.exists() else settings.walls


def _weather(settings: TwinSettings) -> Weather | None:
    """The requested weather; unnamed settings keep their values."""
    if settings.seed is None and not settings.forecast:
        return None
    before = state.load(settings.folder / "cloud.json")
    weather = before.weather if before else Weather()
    seed = weather.seed if settings.seed is None else settings.seed
    return forecast(settings.forecast, seed) if settings.forecast else replace(weather, seed=seed)


def _take_lock(folder: Path) -> int:
    """Waits for a twin that is stopping. A check whether a twin is running takes the lock for a moment, too."""
    handle = claim(folder / "twin.alive", _LOCK_S, pause_s=0.002)
    if handle is None:
        raise Conflict(f"a twin is already running in {folder}", hint="stoker twin status", cause=Cause.ALREADY_RUNNING)
    return handle


def _tell(path: Path, twin: Twin, blob: Mapping[str, str] | None = None) -> None:
    """Written completely and with private permissions, then renamed: a reader always sees all of it."""
    write_whole(path, json.dumps({**asdict(twin.address), "pid": os.getpid(), "blob": blob}), mode=0o600)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m stoker.twin`: a twin over real machines, until it is told to end."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from stoker.errors import Conflict, StokerError
from stoker.twin import statefile, tls
from stoker.twin.machines import Machines
from stoker.twin.machines.opening import open_machines
from stoker.twin.settings import Settings, from_environment
from stoker.twin.twin import Twin
from stoker.twin.weather import Weather, forecast
from stoker.twin.world import World

log = logging.getLogger("stoker.twin")


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


def serve(settings: Settings) -> None:
    """SIGTERM ends the twin and switches its machines off; a kill leaves them running for the next."""
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    alive = _take_lock(settings.folder)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    twin = Twin(
        settings.folder,
        lambda world: _machines(settings, world),
        weather=_weather(settings),
        speed=settings.speed,
        port=settings.port,
    )
    twin.start()
    address = settings.folder / "twin.json"
    try:
        _tell(address, {**asdict(twin.address), "pid": os.getpid()})
        log.info("listening on %s", twin.address.url)
        over.wait()
        twin.power_down()
    finally:
        with suppress(FileNotFoundError):
            address.unlink()
        twin.close()
        os.close(alive)


def _machines(settings: Settings, world: World) -> Machines:
    return open_machines(
        settings.folder / "machines",
        world.token_for,
        acknowledged=world.acknowledged,
        first_events_s=lambda _: world.clock.real_s(world.cloud.weather.first_events_s),
        walls=_walls(settings),
        shown=settings.shown,
        authority=tls.certificate(settings.folder / "tls").authority,
        outward=True,  # a rehearsal in which nothing can be installed is none
    )


def _walls(settings: Settings) -> bool | None:
    """As asked for; but machines without walls that are there stay so, since no other kind can take them over."""
    mark = settings.folder / "plain"
    if settings.walls is False:
        mark.touch()
    elif mark.exists() and not any(entry.is_dir() for entry in (settings.folder / "machines").glob("*")):
        mark.unlink()
    return False if mark.exists() else settings.walls


def _weather(settings: Settings) -> Weather | None:
    """The weather that was asked for: what is not named stays as it was."""
    if settings.seed is None and not settings.forecast:
        return None
    before = statefile.load(settings.folder / "cloud.json")
    weather = before.weather if before else Weather()
    seed = weather.seed if settings.seed is None else settings.seed
    return forecast(settings.forecast, seed) if settings.forecast else replace(weather, seed=seed)


def _take_lock(folder: Path) -> int:
    handle = os.open(folder / "twin.alive", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"a twin is already running in {folder}", hint="stoker twin status") from None
    return handle


def _tell(path: Path, facts: dict[str, object]) -> None:
    """Written whole and private, then renamed: whoever can read it reads all of it."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(facts, file)
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())

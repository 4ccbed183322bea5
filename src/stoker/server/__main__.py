"""`python -m stoker.server`: takes the lock, opens the database, listens in its home, and publishes its address."""

from __future__ import annotations

import gc

gc.disable()  # there is nothing to collect among what is imported: looking takes an eighth of the start

import asyncio
import json
import logging
import logging.handlers
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI

from stoker import __version__
from stoker.errors import Conflict, DatabaseUnusable, HomeUnusable, StokerError
from stoker.files import claim, write_whole
from stoker.model.cause import Cause
from stoker.model.workspace.home import Home
from stoker.server.api.app import build
from stoker.server.door import guarded, log_to, own_socket, port_socket
from stoker.server.records.copies import rebuild
from stoker.server.records.database import Database
from stoker.server.service import assemble
from stoker.server.settings import ServerSettings, close_home, from_environment, make_private
from stoker.server.stores.stores import open_keychain

gc.freeze()
gc.enable()

log = logging.getLogger("stoker.server")


def main() -> int:
    log_to(sys.stderr)
    try:
        serve(from_environment(os.environ))
    except StokerError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - the client shows these lines
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)  # noqa: T201 - likewise
        return error.exit_code
    return 0


def serve(settings: ServerSettings) -> None:
    home = settings.home
    make_private(home)
    alive = _take_lock(home)
    try:
        listeners = [own_socket(home)]
        if settings.port is not None:
            listeners.append(port_socket(settings.port))
        database, notices = _open_database(settings)
        token = secrets.token_urlsafe(32)
        app = build(assemble(settings, token, database, notices))
        address = _Address(home, token, _port_url(listeners[1:]))
        asyncio.run(_run(_Server(_config(app)), app, listeners, settings, address))
    finally:
        _withdraw_address(home)
        os.close(alive)


def _config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=guarded(),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        lifespan="on",
    )


def _port_url(listeners: list[socket.socket]) -> str:
    return "".join(f"http://127.0.0.1:{one.getsockname()[1]}" for one in listeners)


class _Server(uvicorn.Server):
    """Shuts down cleanly on a signal. uvicorn would raise it again afterwards, and skip the clean-up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


async def _run(
    server: uvicorn.Server, app: FastAPI, listeners: list[socket.socket], settings: ServerSettings, address: _Address
) -> None:
    serving = asyncio.create_task(server.serve(sockets=listeners))
    while not server.started and not serving.done():
        await asyncio.sleep(0.002)
    if server.started:
        address.tell()
        log.info("listening at %s", f"{settings.home.socket} {address.http}".strip())
        tasks = [
            asyncio.create_task(_stay_findable(address)),
            asyncio.create_task(_end_when_idle(server, app, settings.idle_exit_s)),
        ]
        await serving
        for task in tasks:
            task.cancel()
    else:
        await serving


async def _stay_findable(address: _Address) -> None:
    """Rewrites a deleted address file, without which nobody could find or stop the server, and closes a home that was
    opened to others, because clients then refuse it."""
    while True:
        await asyncio.sleep(2)
        with suppress(OSError, HomeUnusable):
            close_home(address.home)
            if not address.home.address.exists():
                address.tell()


async def _end_when_idle(server: uvicorn.Server, app: FastAPI, idle_s: float) -> None:
    while True:
        await asyncio.sleep(min(idle_s / 4, 60))
        busy = any(not run.at_rest for run in app.state.service.ledger.open)
        if not busy and time.monotonic() - app.state.asked_at > idle_s:
            log.info("idle for %.0f s: stopping; the next command starts a server", idle_s)
            server.should_exit = True
            return


def _take_lock(home: Home) -> int:
    alive = claim(home.alive_lock)
    if alive is None:
        raise Conflict(
            f"a server is already running for {home.root}", hint="stoker server status", cause=Cause.ALREADY_RUNNING
        )
    return alive


def _open_database(settings: ServerSettings) -> tuple[Database, tuple[str, ...]]:
    home = settings.home
    try:
        return Database.open(home.database), ()
    except DatabaseUnusable as error:
        if error.hint:  # from a newer Stoker: not damaged, so leave it alone
            raise
        log.error("%s", error.message)
        database, notice = rebuild(home, open_keychain(home.credentials, settings.keychain))
        log.warning("%s", notice)
        return database, (notice,)


@dataclass(frozen=True, slots=True)
class _Address:
    home: Home
    token: str = field(repr=False)
    http: str  # the URL of its TCP port; empty where it has none

    def tell(self) -> None:
        """Writes the file privately and completely, then renames it: a reader never sees a part of it."""
        facts = {"token": self.token, "http": self.http, "pid": os.getpid(), "version": __version__}
        write_whole(self.home.address, json.dumps(facts), mode=0o600)


def _withdraw_address(home: Home) -> None:
    with suppress(OSError, ValueError):
        if json.loads(home.address.read_text()).get("pid") == os.getpid():
            home.address.unlink()
            home.socket.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())

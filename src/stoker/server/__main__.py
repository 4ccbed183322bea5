"""`python -m stoker.server`: takes the lock, opens the database, listens on loopback, and tells where."""

from __future__ import annotations

import asyncio
import fcntl
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
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from stoker import __version__
from stoker.errors import Conflict, DatabaseUnusable, HomeUnusable, ServerUnavailable, StokerError
from stoker.model.home import Home
from stoker.server.api.app import build
from stoker.server.database import Database
from stoker.server.keychain import open_keychain
from stoker.server.rebuild import rebuild
from stoker.server.service import assemble
from stoker.server.settings import Settings, from_environment

log = logging.getLogger("stoker.server")


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        serve(from_environment(os.environ))
    except StokerError as error:
        print(f"error: {error.message}", file=sys.stderr)  # noqa: T201 - the client shows these lines
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)  # noqa: T201 - likewise
        return error.exit_code
    return 0


def serve(settings: Settings) -> None:
    home = settings.home
    _make_home(home)
    alive = _take_lock(home)
    listener = _listen(settings.port)
    database, notices = _open_database(settings)
    token = secrets.token_urlsafe(32)
    app = build(assemble(settings, token, database, notices))
    server = _Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1, lifespan="on"))
    host, port = listener.getsockname()
    try:
        asyncio.run(_run(server, app, listener, settings, f"http://{host}:{port}", token))
    finally:
        _withdraw_address(home)
        os.close(alive)


class _Server(uvicorn.Server):
    """Ends in good order on a signal. uvicorn would raise it again afterwards, and nobody would tidy up."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


async def _run(
    server: uvicorn.Server, app: FastAPI, listener: socket.socket, settings: Settings, url: str, token: str
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.002)
    if server.started:
        _tell_address(settings.home, url, token)
        log.info("listening on %s", url)
        tasks = [
            asyncio.create_task(_stay_findable(settings.home, url, token)),
            asyncio.create_task(_end_when_idle(server, app, settings.idle_exit_s)),
        ]
        await serving
        for task in tasks:
            task.cancel()
    else:
        await serving


async def _stay_findable(home: Home, url: str, token: str) -> None:
    """A server whose address file was deleted could be found and stopped by nobody."""
    while True:
        await asyncio.sleep(2)
        if not home.address.exists():
            _tell_address(home, url, token)


async def _end_when_idle(server: uvicorn.Server, app: FastAPI, idle_s: float) -> None:
    while True:
        await asyncio.sleep(min(idle_s / 4, 60))
        busy = any(not run.at_rest for run in app.state.service.ledger.open)
        if not busy and time.monotonic() - app.state.asked_at > idle_s:
            log.info("nothing to do for %.0f s: ending; the next command starts a server", idle_s)
            server.should_exit = True
            return


def _make_home(home: Home) -> None:
    try:
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.store.mkdir(exist_ok=True)
    except OSError as error:
        raise HomeUnusable(
            f"{home.root} cannot be used: {error.strerror}", hint="set STOKER_HOME to a folder you can write to"
        ) from error


def _take_lock(home: Home) -> int:
    alive = os.open(home.alive_lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(f"a server is already running for {home.root}", hint="stoker server status") from None
    return alive


def _listen(port: int) -> socket.socket:
    # Named as TCP, or asyncio would not switch Nagle's delay off: 40 ms for every answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise ServerUnavailable(
            f"port {port} cannot be used: {error.strerror}", hint="unset STOKER_PORT to use any free port"
        ) from error
    listener.listen(512)
    listener.setblocking(False)
    return listener


def _open_database(settings: Settings) -> tuple[Database, tuple[str, ...]]:
    home = settings.home
    try:
        return Database.open(home.database), ()
    except DatabaseUnusable as error:
        if error.hint:  # from a newer Stoker: not damaged, and not ours to touch
            raise
        log.error("%s", error.message)
        database, notice = rebuild(home, open_keychain(home.credentials, settings.keychain))
        log.warning("%s", notice)
        return database, (notice,)


def _tell_address(home: Home, url: str, token: str) -> None:
    """Written whole and private, then renamed: whoever can read it reads all of it."""
    facts = {"url": url, "token": token, "pid": os.getpid(), "version": __version__}
    part = Path(f"{home.address}.{os.getpid()}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(facts, file)
    part.replace(home.address)


def _withdraw_address(home: Home) -> None:
    with suppress(OSError, ValueError):
        if json.loads(home.address.read_text()).get("pid") == os.getpid():
            home.address.unlink()


if __name__ == "__main__":
    sys.exit(main())

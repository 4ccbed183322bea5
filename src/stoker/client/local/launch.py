"""Finds this computer's server, starts it if none runs, and stops it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker import __version__, files
from stoker.client.api.connection import Connection, ServerAddress
from stoker.client.api.http import UNIX
from stoker.client.settings import ClientSettings
from stoker.errors import BadInput, Denied, HomeUnusable, ServerUnavailable, StokerError
from stoker.model.cause import Cause
from stoker.model.workspace.home import Home

if TYPE_CHECKING:
    import subprocess

_START_S = 50.0  # one that is alive is waited for: on a busy computer its imports alone can take 20 s
_STOP_S = 10.0
_TURN_S = 60.0  # to wait for other commands that start a server at the same time
_OTHER_S = 5.0
_PAUSE_S = 0.01

# Servers started by this process: kept so that one that ends is reaped, and does not count as alive.
_children: list[subprocess.Popen[bytes]] = []


def connect(settings: ClientSettings, *, start: bool = True) -> Connection:
    """A connection to the server of the settings, or to this computer's own, started if necessary.

    Sends no request if an address is known: the first real one finds out whether a server responds. With `start` off,
    a missing server is ServerUnavailable.
    """
    if not settings.local:
        return Connection(_named(settings))
    address = find(settings.home)
    if address and start and _older(address):
        _stop_older(settings.home)
        address = None
    if not start:
        return Connection(address or _found(settings.home), reconnect=partial(_found, settings.home))
    return Connection(address or _started(settings), reconnect=partial(_started, settings))


def find(home: Home) -> ServerAddress | None:
    """The address that a server has left; it may be gone by now. If others can write to the home, the address is not
    trusted: the next server closes the home first."""
    try:
        if not _is_own(home):
            return None
        told = json.loads(home.address.read_bytes())
        port = str(told.get("http", ""))
        return ServerAddress(UNIX + str(home.socket), str(told["token"]), int(told["pid"]), str(told["version"]), port)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(home, error) from error
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def stop(settings: ClientSettings) -> bool:
    """Ends this computer's server and returns once it is gone; runs continue. False: none was running."""
    if not settings.local:
        raise BadInput(
            f"the server at {settings.server} is not this computer's own",
            hint="unset STOKER_SERVER to use your own",
            cause=Cause.ELSEWHERE,
        )
    if not settings.home.alive_lock.exists():
        return False
    with _turn(settings.home):
        return _stop(settings.home)


@contextmanager
def stopped(settings: ClientSettings) -> Iterator[None]:
    """This computer's server has ended, and no other can start during this."""
    with _turn(settings.home):
        _stop(settings.home)
        yield


def status(settings: ClientSettings) -> dict[str, Any] | None:
    """The server's information (version, pid, home, started_at, url), or None if none responds."""
    address = find(settings.home) if settings.local else _named(settings)
    return _health(address) if address else None


def _named(settings: ClientSettings) -> ServerAddress:
    address = ServerAddress(settings.server, settings.token)
    if not settings.token and not address.proves_itself:
        raise Denied(f"the server at {settings.server} cannot be verified without its token", hint="set STOKER_TOKEN")
    return address


def _is_own(home: Home) -> bool:
    """No other user can have written to it. Raises HomeUnusable if it belongs to another user."""
    if os.name == "nt":
        return True
    seen = home.root.stat()
    if seen.st_uid != os.geteuid():
        raise HomeUnusable(
            f"Stoker's folder {home.root} belongs to user {seen.st_uid}, not to you (user {os.geteuid()})",
            hint="set STOKER_HOME to a folder of your own",
        )
    return not seen.st_mode & 0o022


def _found(home: Home) -> ServerAddress:
    address = find(home)
    if address is None:
        raise ServerUnavailable("no server is running on this computer", hint="start one with `stoker server start`")
    return address


def _started(settings: ClientSettings) -> ServerAddress:
    """The address of a server that responds. The first command starts it; the others find it."""
    with _turn(settings.home):
        address = find(settings.home)
        if address and _health(address):
            return address
        return _start(settings)


@contextmanager
def _turn(home: Home) -> Iterator[None]:
    """Only one process at a time starts or stops a server."""
    try:
        home.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        with files.held(home.start_lock, _TURN_S):
            yield
    except TimeoutError:
        raise ServerUnavailable("another command has tried to start the server for a minute, without success") from None
    except OSError as error:
        raise _unusable(home, error) from error


def _start(settings: ClientSettings) -> ServerAddress:
    home = settings.home
    with home.server_log.open("ab") as log:
        said_before = log.tell()
        child = _spawn(settings, log.fileno())
    _children.append(child)
    give_up = time.monotonic() + _START_S
    while time.monotonic() < give_up:
        ended = child.poll() is not None  # checked first, so that its last output is not missed
        address = find(home)
        if address and _health(address):
            return address
        if ended and not files.is_held(home.alive_lock):
            raise _could_not(home, said_before, f"it ended with exit code {child.returncode}", ended=True)
        if ended:  # another one was started at the same time: it publishes its address soon
            give_up = min(give_up, time.monotonic() + _OTHER_S)
        time.sleep(_PAUSE_S)
    raise _could_not(home, said_before, f"it did not respond within {_START_S:.0f} s", ended=False)


def _spawn(settings: ClientSettings, log: int) -> subprocess.Popen[bytes]:
    import subprocess  # 12 ms, and needed only to start a server

    detached: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        detached = {"creationflags": subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP}
    return subprocess.Popen(
        [sys.executable, "-m", "stoker.server"],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=settings.home.root,
        env=settings.for_server(),
        **detached,
    )


def _health(address: ServerAddress) -> dict[str, Any] | None:
    connection = Connection(address)
    try:
        told = connection.get("/v1/health", timeout_s=5.0)
    except StokerError:
        return None
    finally:
        connection.close()
    return {**told, "url": address.url, "http": address.http} if isinstance(told, dict) else None


def _stop(home: Home) -> bool:
    address = find(home)
    if address is None or not files.is_held(home.alive_lock):
        return False
    with suppress(StokerError):
        Connection(address).post("/v1/stop", repeat=False, timeout_s=_STOP_S)
    if _gone(home):
        return True
    with suppress(ProcessLookupError):
        os.kill(address.pid, signal.SIGTERM)
    if not _gone(home):
        raise ServerUnavailable(
            f"the server (pid {address.pid}) does not exit", hint=f"kill it with `kill -9 {address.pid}`"
        )
    return True


def _gone(home: Home) -> bool:
    """The kernel releases the server's lock when it has ended, however it ends."""
    give_up = time.monotonic() + _STOP_S
    while files.is_held(home.alive_lock):
        if time.monotonic() > give_up:
            return False
        time.sleep(_PAUSE_S)
    _children[:] = [child for child in _children if child.poll() is None]
    return True


def _stop_older(home: Home) -> None:
    """Checks again with the lock: another command may have replaced it already."""
    with _turn(home):
        address = find(home)
        if address and _older(address):
            _stop(home)


def _older(address: ServerAddress) -> bool:
    """A newer server is left alone: an older one could not read its database."""
    try:
        theirs, ours = ([int(part) for part in version.split(".")] for version in (address.version, __version__))
        return theirs < ours
    except ValueError:
        return address.version != __version__


def _could_not(home: Home, said_before: int, how: str, *, ended: bool) -> ServerUnavailable:
    message, hint = _last_words(home, said_before, ended=ended)
    return ServerUnavailable(
        f"the server could not start: {message or how}", hint=hint or f"see its log: {home.server_log}"
    )


def _last_words(home: Home, said_before: int, *, ended: bool) -> tuple[str, str]:
    """The `error:` and `hint:` lines at the end of the server's log; without those, the last line of one that ended.
    The last line of one that is merely slow is not the reason."""
    try:
        with home.server_log.open("rb") as log:
            log.seek(max(said_before, os.fstat(log.fileno()).st_size - 20_000))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError:
        return "", ""
    said = [line.strip() for line in lines if line.strip()]
    message = next((line.removeprefix("error:").strip() for line in reversed(said) if line.startswith("error:")), "")
    hint = next((line.removeprefix("hint:").strip() for line in reversed(said) if line.startswith("hint:")), "")
    return message or (said[-1] if said and ended else ""), hint


def _unusable(home: Home, error: OSError) -> HomeUnusable:
    return HomeUnusable(
        f"Stoker's folder {home.root} cannot be used: {(error.strerror or str(error)).lower()}",
        hint="set STOKER_HOME to a folder you can write to",
    )

"""The twin's Blob service: a supervised Azurite at a fixed address, where it is installed, and its containers."""

from __future__ import annotations

import base64
import errno
import hashlib
import hmac
import json
import logging
import os
import random
import re
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from stoker.errors import AzuriteMissing, TwinFailed
from stoker.files import claim, write_whole

_VERSION = "2021-12-02"
_TIMEOUT_S = 10.0
_MADE, _THERE, _TOLD, _GOING, _GONE = 201, 409, 200, 202, 404
_NAMES = re.compile(rb"<Container><Name>([^<]+)</Name>")


def make(port: int, account: str, key: str, container: str) -> None:
    """An existing one is fine."""
    status, _ = _ask("PUT", port, account, key, f"/{container}", {"restype": "container"})
    if status not in (_MADE, _THERE):
        raise TwinFailed(f"the Blob service did not create the container {container} of {account}: {status}")


def clear(port: int, account: str, key: str) -> None:
    """Removes all containers of an account, as Azure does when the account is deleted."""
    status, told = _ask("GET", port, account, key, "/", {"comp": "list"})
    if status != _TOLD:
        raise TwinFailed(f"the Blob service did not list the containers of {account}: {status}")
    for name in _NAMES.findall(told):
        status, _ = _ask("DELETE", port, account, key, f"/{name.decode()}", {"restype": "container"})
        if status not in (_GOING, _GONE):
            raise TwinFailed(f"the Blob service did not delete the container {name.decode()} of {account}: {status}")


def _ask(method: str, port: int, account: str, key: str, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {account}:{_signature(method, account, key, path, query, headers)}"
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        connection.request(method, f"/{account}{path}?{words}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException) as error:
        raise TwinFailed(f"the Blob service does not answer: {error}") from error
    finally:
        connection.close()


def _signature(method: str, account: str, key: str, path: str, query: dict[str, str], headers: dict[str, str]) -> str:
    """Shared Key: the method, eleven empty headers, Azure's own headers, and the resource."""
    own = "".join(f"{name}:{headers[name]}\n" for name in ("x-ms-date", "x-ms-version"))
    # The account appears twice: an emulator has it in the path, too.
    asked = f"/{account}/{account}{path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"{method}\n" + "\n" * 11 + own + asked
    return base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()


_PROGRAM = Path("node_modules/azurite/dist/src/blob/main.js")
_GUARD = Path(__file__).with_name("azurite_guard.js")
_LOGIN = Path(__file__).with_name("azurite_login.js")
# Quiet, without telemetry, and accepting SDKs that are newer than it.
_MANNERS = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--oauth", "basic")


def command(places: Iterable[Path], location: Path, port: int) -> list[str]:
    """The command that starts it. `places` are folders of npm installations, searched before PATH.

    Raises AzuriteMissing where it is not installed, and TwinFailed where only Node.js is missing.
    """
    program = find(places)
    if program is None:
        raise AzuriteMissing(
            "the twin's Blob service requires Azurite, which is not installed", hint="npm install --global azurite"
        )
    node = shutil.which("node")
    if node is None:
        raise TwinFailed(f"{program} requires Node.js, but `node` was not found", hint="apt-get install nodejs")
    where = ["--location", str(location), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    return [node, "--require", str(_GUARD), "--require", str(_LOGIN), str(program), *_MANNERS, *where]


def find(places: Iterable[Path]) -> Path | None:
    for place in places:
        if (place / _PROGRAM).is_file():
            return place / _PROGRAM
    for name, inside in (("azurite-blob", "."), ("azurite", "blob")):
        if found := shutil.which(name):
            program = Path(found).resolve().parent / inside / "main.js"  # npm links packages into PATH
            if program.is_file():
                return program
    return None


# The address of the twin's Blob service: a port and a key that stay the same, since a store refers to them.

ACCOUNT, CONTAINER = "stokertwin", "runs"
# Below the ephemeral range: the port should be free after a reboot, too.
_PORTS = range(20_000, 32_768)


@dataclass(frozen=True, slots=True)
class AzuritePlace:
    port: int
    key: str = field(repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def told(self) -> dict[str, str]:
        """What a client needs to connect."""
        return {"url": f"{self.endpoint}/{ACCOUNT}/{CONTAINER}", "account": ACCOUNT, "key": self.key}


def find_place(path: Path) -> AzuritePlace:
    """The one in the file, which is created at the first time."""
    try:
        return AzuritePlace(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        place = AzuritePlace(_free_port(), base64.b64encode(secrets.token_bytes(64)).decode())
        write_whole(path, json.dumps(asdict(place)), mode=0o600)
        return place
    except (OSError, ValueError, TypeError) as error:
        raise TwinFailed(f"could not read {path}: {error}", hint=f"rm {path}") from error


def check_free(port: int) -> None:
    if not _is_free(port):
        raise TwinFailed(
            f"port {port}, which the twin uses for its blobs, is in use", hint=f"ss -ltnp 'sport = :{port}'"
        )


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        if _is_free(port):
            return port
    raise TwinFailed(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


log = logging.getLogger("stoker.twin")

_START_S = 60.0
_END_S = 15.0  # for one that has lost its twin to save its data
_PAUSE_S = 0.02
_LOOK_S = 0.1
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class StorageAccount:
    """`keys` as Azure lists them; `containers` are those that must exist. `people` may read it with a login, by object
    id, and write where the value is true; their tokens are `signed_with` this."""

    keys: tuple[str, ...] = field(repr=False)
    containers: frozenset[str] = frozenset()
    people: Mapping[str, bool] = field(default_factory=dict)
    signed_with: str = field(default="", repr=False)


Accounts = Mapping[str, StorageAccount]  # by name


class BlobService:
    """Called from several threads. `places` are where Azurite may be installed.

    It starts at once where it is `wanted` or was used before; else on request or when an account is created. It ends
    with the twin, even if that is killed: see `azurite_guard.js`.
    """

    def __init__(self, folder: Path, places: Sequence[Path], *, wanted: bool = False) -> None:
        self._folder = folder
        self._places = places
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._served: Accounts = {}
        self._asked: Callable[[], Accounts] = dict
        self._ready: Callable[[], None] = lambda: None
        self._wanted = wanted or (folder / "data").exists()
        self._trouble = ""
        self._watching = threading.Thread(target=self._watch, name="twin-blob", daemon=True)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.place: AzuritePlace = find_place(folder / "place.json")
        self._watching.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> AzuritePlace:
        """Returns when it answers. Calling it twice is fine. Raises AzuriteMissing or TwinFailed."""
        with self._lock:
            if not self.running:
                self._launch()
            self._wanted = True
        return self.place

    def settle(self) -> None:
        """Returns when it has every account and container that Resource Manager knows, as whoever was told of one
        expects."""
        with self._lock:
            if not self.running:
                self._launch()
            self._follow()

    def attend(self, asked: Callable[[], Accounts], ready: Callable[[], None]) -> None:
        """`asked` returns the accounts that it must have besides its own. `ready` is called after each start, and now
        if it is running."""
        with self._lock:
            self._asked, self._ready = asked, ready
            if self.running:
                ready()

    def close(self) -> None:
        """Its data is kept."""
        self._over.set()
        self._watching.join()
        with self._lock:
            if self._process is None:
                return
            self._process.terminate()
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _watch(self) -> None:
        pause_s = 0.0
        while not self._over.wait(pause_s):
            try:
                with self._lock:
                    self._wanted = self._wanted or bool(self._asked())
                    if self._wanted and not self.running:
                        self._launch()
                    self._follow()
                pause_s, self._trouble = _LOOK_S, ""
            except (TwinFailed, OSError) as error:
                pause_s = min(max(pause_s, 0.5) * 2, _LONGEST_PAUSE_S)
                if str(error) != self._trouble:
                    log.warning("the Blob service: %s", error)
                self._trouble = str(error)

    def _launch(self) -> None:
        began, self._served = time.monotonic(), {}
        words = command(self._places, self._folder / "data", self.place.port)
        self._tell_accounts(self._accounts())
        lock = self._claim()
        try:
            check_free(self.place.port)
            with (self._folder / "azurite.log").open("ab") as said:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=said, stderr=said, cwd=self._folder, pass_fds=[lock]
                )
        finally:
            os.close(lock)
        self._wait_for(self._process)
        self._follow()
        log.info("Azurite answers at %s after %.1f s", self.place.endpoint, time.monotonic() - began)
        self._ready()

    def _claim(self) -> int:
        """A lock that Azurite holds as long as it lives: two of them would corrupt each other's files."""
        lock = claim(self._folder / "lock", _END_S)
        if lock is None:
            raise TwinFailed(f"another Azurite is using {self._folder}", hint="stoker twin down")
        return lock

    def _wait_for(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.place.port), 1.0).close()
                return
            except OSError:
                ended = process.poll() is not None
            if ended or self._over.is_set() or time.monotonic() > until:
                how = f"exited with code {process.returncode}" if ended else f"did not answer within {_START_S:.0f} s"
                process.kill()
                process.wait()
                raise TwinFailed(f"Azurite {how}", hint=f"its log is {self._folder / 'place.log'}")
            time.sleep(_PAUSE_S)

    def _follow(self) -> None:
        """Gives Blob clients the accounts and containers that Resource Manager knows."""
        wanted = self._accounts()
        if wanted == self._served or not self.running:
            return
        for name, account in self._served.items():
            if name not in wanted:
                clear(self.place.port, name, account.keys[0])
        self._tell_accounts(wanted)
        for name, account in wanted.items():
            before = self._served[name].containers if name in self._served else frozenset()
            for container in sorted(account.containers - before):
                make(self.place.port, name, account.keys[0], container)
        self._served = wanted

    def _accounts(self) -> Accounts:
        return {**self._asked(), ACCOUNT: StorageAccount((self.place.key,), frozenset((CONTAINER,)))}

    def _tell_accounts(self, accounts: Accounts) -> None:
        """In the form of its variable AZURITE_ACCOUNTS, in a file: others may see the variables of a process."""
        text = ";".join(f"{name}:{':'.join(account.keys)}" for name, account in accounts.items())
        key = next((account.signed_with for account in accounts.values() if account.signed_with), "")
        people = {name: dict(account.people) for name, account in accounts.items()}
        write_whole(self._folder / "logins", json.dumps({"key": key, "accounts": people}), mode=0o600)
        write_whole(self._folder / "accounts", text, mode=0o600)
        if self.running and self._process and self._process.stdin:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()

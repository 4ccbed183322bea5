"""The twin's Blob service: a supervised Azurite at a fixed address."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.errors import TwinFailed
from stoker.files.lock import claim
from stoker.files.whole import write_whole
from stoker.twin.blob import containers, place
from stoker.twin.blob.place import ACCOUNT, CONTAINER, AzuritePlace, check_free, find_place

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
        words = place.command(self._places, self._folder / "data", self.place.port)
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
                containers.clear(self.place.port, name, account.keys[0])
        self._tell_accounts(wanted)
        for name, account in wanted.items():
            before = self._served[name].containers if name in self._served else frozenset()
            for container in sorted(account.containers - before):
                containers.make(self.place.port, name, account.keys[0], container)
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

"""What the agent needs to know about Azure VMs, shipped with it: eviction notices, and how a VM removes itself. Nothing
but the standard library."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from stoker.agent.machine.cloud import CloudListener, SelfRemoval
from stoker.model.orders import Notice
from stoker.providers.azure.node.registry import registry_login as registry_login


def listen(url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None]) -> CloudListener:
    return ScheduledEvents(url, warn, tell)


def removal(settings: Mapping[str, str]) -> SelfRemoval:
    return Release(**settings)


MACHINE = "{machine}"
RELEASE_TIMEOUT_S = 30.0
LONGEST_PAUSE_S = 60.0
WATCH_S = 10.0  # between polls of a deletion
_GONE = 404
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Release:
    """`url` is the resource to delete, `token_url` returns a token that may do it. Where that is refused, `instead_url`
    deallocates the VM, so that little more than its disk is billed. `MACHINE` in it stands for the VM's own id, which
    the metadata service returns."""

    url: str
    token_url: str
    instead_url: str = ""
    ca_file: str = ""

    def carry_out(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Returns when the deletion has finished, which this VM rarely sees. An accepted deletion may still fail, and
        is then requested again. Nothing else matters until then, since the VM is billed."""
        pause_s = 1.0
        while True:
            try:
                token = self._token()
                return self._watch(self._remove(token), token, sleep)
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
                print(f"could not remove this VM: {error}", file=sys.stderr, flush=True)  # noqa: T201  # its journal
            sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _token(self) -> str:
        with self._metadata(self.token_url) as answer:
            return str(json.load(answer)["access_token"])

    def _remove(self, token: str) -> str:
        """The URL to poll; empty where Azure gives none."""
        try:
            return self._ask("DELETE", self.url, token)[1]
        except urllib.error.HTTPError as error:
            locked = b"ScopeLocked" in error.read()
            if error.code == _GONE:
                return ""
            if not self.instead_url or not (locked or error.code in _REFUSED):
                raise
            return self._ask("POST", self.instead_url.replace(MACHINE, self._own_id()), token)[1]

    def _watch(self, operation: str, token: str, sleep: Callable[[float], None]) -> None:
        """Raises HTTPError where the accepted deletion has failed."""
        going = bool(operation)
        while going:
            sleep(WATCH_S)
            status, _ = self._ask("GET", operation, token)
            going = status == http.client.ACCEPTED

    def _own_id(self) -> str:
        """Of a VM whose id was unknown before Azure created it; empty where it is not needed."""
        if MACHINE not in self.instead_url:
            return ""
        parts = urlsplit(self.token_url)
        url = f"{parts.scheme}://{parts.netloc}/metadata/instance/compute/resourceId?api-version=2021-02-01&format=text"
        with self._metadata(url) as answer:
            return str(answer.read(1000).decode())

    def _metadata(self, url: str) -> Any:
        """No proxy: the address is link-local."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=RELEASE_TIMEOUT_S)

    def _ask(self, method: str, url: str, token: str) -> tuple[int, str]:
        """The status, and the URL to poll."""
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(url, b"" if method == "POST" else None, headers, method=method)
        context = ssl.create_default_context(cafile=self.ca_file or None)
        with urllib.request.urlopen(request, timeout=RELEASE_TIMEOUT_S, context=context) as answer:
            return int(answer.status), str(answer.headers.get("Location") or "")


EVERY_S = 1.0
FIRST_S = 150.0  # the first request enables the service, and its response may take two minutes
TIMEOUT_S = 5.0
SHORTEST = timedelta(seconds=30)  # of a Preempt event without a time

# These events remove the VM or stop what runs on it. A Freeze ends by itself and does not require a stop.
RETURNING = ("Reboot", "Redeploy")  # afterwards the VM is back, with its disk
ENDING = ("Preempt", "Terminate", *RETURNING)


class ScheduledEvents:
    """A thread that polls every second. A response that is missing or invalid changes nothing."""

    def __init__(self, url: str, tell: Callable[[Notice | None], None], say: Callable[[str, str], None]) -> None:
        self._url = url
        self._tell = tell
        self._say = say
        self._done = threading.Event()
        self._frozen: set[str] = set()
        self._name = ""  # of this VM, once known
        self._known: dict[str, Notice] = {}  # by event id: an event is one notice, however often it is reported
        self._thread = threading.Thread(target=self._run, name="scheduled events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._done.set()

    def approve(self) -> None:
        """The checkpoint is saved, so a restart need not wait for the end of its notice. A refusal is harmless."""
        starts = [{"EventId": id} for id, notice in self._known.items() if notice.returns]
        body = json.dumps({"StartRequests": starts}).encode()
        request = urllib.request.Request(self._url, body, {"Metadata": "true", "Content-Type": "application/json"})
        with suppress(OSError, http.client.HTTPException), _opener().open(request, timeout=TIMEOUT_S):
            pass

    def stay(self) -> None:
        """Azure does not ask how the VM has used its notice."""

    def _run(self) -> None:
        timeout_s = FIRST_S
        while not self._done.is_set():
            with suppress(OSError, ValueError, TypeError, KeyError, http.client.HTTPException):
                self._heed(self._ask(timeout_s))
                timeout_s = TIMEOUT_S
            self._done.wait(EVERY_S)

    def _ask(self, timeout_s: float) -> list[dict[str, Any]]:
        request = urllib.request.Request(self._url, headers={"Metadata": "true"})
        with _opener().open(request, timeout=timeout_s) as answer:
            return list(json.load(answer)["Events"])

    def _is_mine(self, event: dict[str, Any]) -> bool:
        """Azure may report events of other VMs too. An event without a name, or before this VM knows its own, counts:
        an unneeded stop costs less than a missed eviction."""
        meant = [str(one).lower() for one in event.get("Resources") or ()]
        if meant and not self._name:
            with suppress(OSError, http.client.HTTPException):
                self._name = _own_name(self._url)
        return not meant or not self._name or self._name in meant

    def _heed(self, events: list[dict[str, Any]]) -> None:
        now = datetime.now(UTC)
        events = [event for event in events if self._is_mine(event)]
        for event in events:
            if event["EventType"] == "Freeze" and event["EventId"] not in self._frozen:
                self._frozen.add(event["EventId"])
                self._say("freeze", f"Azure will pause the VM for {event.get('DurationInSeconds', 'some')} s")
        ending = {event["EventId"]: event for event in events if event["EventType"] in ENDING}
        self._known = {
            id: self._known.get(id)
            or Notice(now, deadline(event, now), drill=False, returns=event["EventType"] in RETURNING)
            for id, event in ending.items()
        }
        self._tell(min(self._known.values(), key=lambda one: one.deadline, default=None))


def _own_name(url: str) -> str:
    """The name of this VM in Azure."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    with _opener().open(urllib.request.Request(place, headers={"Metadata": "true"}), timeout=TIMEOUT_S) as answer:
        return str(answer.read(1000).decode(errors="replace")).strip().lower()


def _opener() -> urllib.request.OpenerDirector:
    """No proxy: the address is link-local."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def deadline(event: dict[str, Any], now: datetime) -> datetime:
    """When it may happen. An event that has started contains no time: it happens now."""
    text = event.get("NotBefore") or ""
    if text:
        return max(parsedate_to_datetime(text).astimezone(UTC), now)
    return now if event.get("EventStatus") == "Started" else now + SHORTEST

"""Notices that the cloud gives the machine itself, at the address where machines ask about themselves."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from stoker.model.node.orders import Notice

EVERY_S = 1.0
FIRST_S = 150.0  # the first request switches the service on, and its answer may take two minutes
TIMEOUT_S = 5.0
SHORTEST = timedelta(seconds=30)  # of a Preempt that does not say when

# These take the machine, or what runs on it, away. A Freeze ends by itself, and is no reason to stop.
RETURNING = ("Reboot", "Redeploy")  # after these it is there again, with its disk
ENDING = ("Preempt", "Terminate", *RETURNING)


class ScheduledEvents:
    """A thread that asks every second. An answer that does not come, or makes no sense, changes nothing."""

    def __init__(self, url: str, tell: Callable[[Notice | None], None], say: Callable[[str, str], None]) -> None:
        self._url = url
        self._tell = tell
        self._say = say
        self._done = threading.Event()
        self._frozen: set[str] = set()
        self._name = ""  # of this machine, once it has been told
        self._known: dict[str, Notice] = {}  # by event id: the same event is one notice however often it is heard of
        self._thread = threading.Thread(target=self._run, name="scheduled events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._done.set()

    def approve(self) -> None:
        """Whatever was saved is safe: a restart need not wait for the end of its notice. Refused is as good."""
        starts = [{"EventId": id} for id, notice in self._known.items() if notice.returns]
        body = json.dumps({"StartRequests": starts}).encode()
        request = urllib.request.Request(self._url, body, {"Metadata": "true", "Content-Type": "application/json"})
        with suppress(OSError, http.client.HTTPException), _opener().open(request, timeout=TIMEOUT_S):
            pass

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
        """Machines may be told of what happens to their neighbours. Where it is not said whose it is, or who this is,
        it is heeded: a stop that was not needed costs less than an eviction that was missed."""
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
                self._say("freeze", f"the machine will stand still for {event.get('DurationInSeconds', 'some')} s")
        ending = {event["EventId"]: event for event in events if event["EventType"] in ENDING}
        self._known = {
            id: self._known.get(id)
            or Notice(now, deadline(event, now), drill=False, returns=event["EventType"] in RETURNING)
            for id, event in ending.items()
        }
        self._tell(min(self._known.values(), key=lambda one: one.deadline, default=None))


def _own_name(url: str) -> str:
    """What the cloud calls this machine."""
    parts = urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    with _opener().open(urllib.request.Request(place, headers={"Metadata": "true"}), timeout=TIMEOUT_S) as answer:
        return str(answer.read(1000).decode(errors="replace")).strip().lower()


def _opener() -> urllib.request.OpenerDirector:
    """No proxy: the address is the machine's own."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def deadline(event: dict[str, Any], now: datetime) -> datetime:
    """When it may happen. An event that has begun has no time in it: it happens now."""
    text = event.get("NotBefore") or ""
    if text:
        return max(parsedate_to_datetime(text).astimezone(UTC), now)
    return now if event.get("EventStatus") == "Started" else now + SHORTEST

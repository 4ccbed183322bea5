"""What the agent needs to know on a node of Azure ML, shipped with it: eviction notices, and that nothing is to be
removed there."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from stoker.agent.machine.cloud import CloudListener, SelfRemoval
from stoker.model.orders import Notice

EVERY_S = 1.0
FIRST_S = 150.0  # the first request enables the service, and its response may take two minutes
TIMEOUT_S = 5.0
SHORTEST = timedelta(seconds=30)  # of an event without a time


class PreemptionEvents:
    """A thread that asks the machine's metadata service every second. That a job of Azure ML can reach it is not
    documented; where it cannot, a preemption comes without notice."""

    def __init__(self, url: str, warn: Callable[[Notice | None], None]) -> None:
        self._url = url
        self._warn = warn
        self._done = threading.Event()
        self._known: dict[str, Notice] = {}
        self._thread = threading.Thread(target=self._run, name="preemption", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        self._done.set()

    def approve(self) -> None:
        """Azure ML gives the job another node."""

    def stay(self) -> None:
        """Nobody asks how the node has used its notice."""

    def _run(self) -> None:
        timeout_s = FIRST_S
        while not self._done.is_set():
            with suppress(OSError, ValueError, TypeError, KeyError, http.client.HTTPException):
                self._heed(self._ask(timeout_s))
                timeout_s = TIMEOUT_S
            self._done.wait(EVERY_S)

    def _ask(self, timeout_s: float) -> list[dict[str, Any]]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the address is link-local
        request = urllib.request.Request(self._url, headers={"Metadata": "true"})
        with opener.open(request, timeout=timeout_s) as answer:
            return list(json.load(answer)["Events"])

    def _heed(self, events: list[dict[str, Any]]) -> None:
        now = datetime.now(UTC)
        ending = {one["EventId"]: one for one in events if one["EventType"] in ("Preempt", "Terminate")}
        self._known = {
            id: self._known.get(id) or Notice(now, _deadline(event, now), drill=False) for id, event in ending.items()
        }
        self._warn(min(self._known.values(), key=lambda one: one.deadline, default=None))


def _deadline(event: Mapping[str, Any], now: datetime) -> datetime:
    text = event.get("NotBefore") or ""
    return max(parsedate_to_datetime(text).astimezone(UTC), now) if text else now + SHORTEST


@dataclass(frozen=True, slots=True)
class NothingToRelease:
    """A job ends with its agent, and Azure ML releases the node after its idle time."""

    def carry_out(self) -> None:
        return


def listen(url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None]) -> CloudListener:  # noqa: ARG001  # as every cloud's
    return PreemptionEvents(url, warn)


def removal(settings: Mapping[str, str]) -> SelfRemoval:  # noqa: ARG001  # as every cloud's
    return NothingToRelease()

"""How an agent handles the cloud's own notices, from a real server with the responses of the test."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stoker.agent.notice.noticing import NoticeBoard
from stoker.model.orders import Notice
from stoker.providers.azure import node
from stoker.providers.azure.node import ScheduledEvents, deadline

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Metadata:
    """The service at a machine's own address."""

    def __init__(self) -> None:
        self.answer: bytes = b'{"DocumentIncarnation": 1, "Events": []}'
        self.asked = 0
        self.name = "Node-7"
        self.approved: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.startswith("/metadata/instance/compute/name?"):
                    self.send_response(200 if outer.name else 404)
                    self.end_headers()
                    self.wfile.write(outer.name.encode())
                    return
                outer.asked += 1
                good = self.headers.get("Metadata") == "true"
                self.send_response(200 if good else 400)
                self.end_headers()
                self.wfile.write(outer.answer if good else b"")

            def do_POST(self) -> None:
                said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.approved += [one["EventId"] for one in said["StartRequests"]]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metadata/scheduledevents"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def say(self, *events: dict[str, Any]) -> None:
        self.answer = json.dumps({"DocumentIncarnation": 2, "Events": events}).encode()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    yield service
    service.server.shutdown()


@pytest.fixture
def heard(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Notice | None]]:
    monkeypatch.setattr(node, "EVERY_S", 0.01)
    notices: list[Notice | None] = []
    board = NoticeBoard(notices.append)
    events = ScheduledEvents(metadata.url, lambda one: board.post("machine", one), lambda *_: None)
    events.start()
    yield notices
    events.finish()


def until(test: Any) -> None:
    limit = time.monotonic() + 20
    while not test():
        assert time.monotonic() < limit
        time.sleep(0.01)


def event(kind: str = "Preempt", id: str = "e", **more: Any) -> dict[str, Any]:
    return {"EventId": id, "EventType": kind, "EventStatus": "Scheduled", "NotBefore": "", **more}


def test_an_event_reported_many_times_is_one_notice(metadata: Metadata, heard: list[Notice | None]) -> None:
    metadata.say(event(NotBefore=format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)))
    until(lambda: heard)
    asked = metadata.asked
    until(lambda: metadata.asked > asked + 5)
    assert len(heard) == 1
    assert heard[0]
    assert 25 <= heard[0].seconds <= 31


def test_what_happens_to_a_neighbour_is_none_of_this_machines_notices(
    metadata: Metadata, heard: list[Notice | None]
) -> None:
    metadata.say(event(id="theirs", Resources=["node-8"]))
    asked = metadata.asked
    until(lambda: metadata.asked > asked + 3)
    assert heard == []
    metadata.say(event(id="theirs", Resources=["node-8"]), event(id="ours", Resources=["node-8", "node-7"]))
    until(lambda: heard)


def test_a_machine_that_is_not_told_its_name_heeds_every_event(metadata: Metadata, heard: list[Notice | None]) -> None:
    metadata.name = ""
    metadata.say(event(Resources=["node-8"]))
    until(lambda: heard)


def test_an_event_that_vanishes_was_withdrawn(metadata: Metadata, heard: list[Notice | None]) -> None:
    metadata.say(event())
    until(lambda: heard)
    metadata.say()
    until(lambda: len(heard) == 2)
    assert heard[-1] is None


def test_nonsense_and_errors_change_nothing(metadata: Metadata, heard: list[Notice | None]) -> None:
    metadata.say(event())
    until(lambda: heard)
    for answer in (b"", b"<html>", b"[]", b'{"Events": [{}]}', b'{"Events": null}'):
        metadata.answer = answer
        asked = metadata.asked
        until(lambda asked=asked: metadata.asked > asked + 1)
    assert len(heard) == 1


def test_a_freeze_is_no_reason_to_stop(metadata: Metadata, heard: list[Notice | None]) -> None:
    metadata.say(event("Freeze", DurationInSeconds=9))
    asked = metadata.asked
    until(lambda: metadata.asked > asked + 3)
    assert heard == []


def test_the_nearest_of_two_events_counts(metadata: Metadata, heard: list[Notice | None]) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=10), usegmt=True)
    late = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    metadata.say(event("Reboot", "a", NotBefore=late), event("Preempt", "b", NotBefore=soon))
    until(lambda: heard)
    assert heard[0]
    assert heard[0].seconds < 60


def test_a_restart_brings_the_machine_back_and_may_begin_early(metadata: Metadata) -> None:
    notices: list[Notice | None] = []
    events = ScheduledEvents(metadata.url, notices.append, lambda *_: None)
    events.start()
    metadata.say(event("Redeploy", "a"), event("Freeze", "b"))
    until(lambda: notices and notices[-1])
    events.finish()
    assert notices[-1] and notices[-1].returns
    events.approve()
    assert metadata.approved == ["a"], "neither the freeze nor an eviction is hurried"


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({"NotBefore": "Thu, 01 Jan 2026 00:00:08 GMT"}, 8),
        ({"NotBefore": "Wed, 31 Dec 2025 23:59:00 GMT"}, 0),
        ({"EventStatus": "Started"}, 0),
        ({}, 30),
    ],
)
def test_when_an_event_may_happen(more: dict[str, Any], seconds: int) -> None:
    assert deadline(event(**more), NOW) == NOW + timedelta(seconds=seconds)


def test_a_drill_and_the_machines_own_notice_are_one_by_the_nearest_deadline() -> None:
    seen: list[Notice | None] = []
    board = NoticeBoard(seen.append)
    drill, own = Notice(NOW, NOW + timedelta(seconds=60)), Notice(NOW, NOW + timedelta(seconds=8))
    board.post("server", None)
    board.post("server", drill)
    board.post("server", drill)
    board.post("machine", own)
    board.post("machine", None)
    board.post("server", None)
    assert seen == [drill, own, drill, None]

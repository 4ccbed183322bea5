"""A machine that removes itself, with what its cloud answers in the hands of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stoker.providers.azure.node import MACHINE, Release

OWN = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/node_ab12cd34"


class Azure:
    """Its metadata service and its Resource Manager. `answers` are those to deletions, in turn."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[tuple[int, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                good = self.headers.get("Metadata") == "true"
                body = b'{"access_token": "t"}' if "/token" in self.path else OWN.encode()
                self._say(200 if good else 400, body)

            def do_DELETE(self) -> None:
                outer.asked.append(f"DELETE {self.path}")
                self._say(*outer.answers.pop(0))

            def do_POST(self) -> None:
                outer.asked.append(f"POST {self.path}")
                self._say(202, b"")

            def _say(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def azure() -> Iterator[Azure]:
    service = Azure()
    yield service
    service.server.shutdown()


def release(azure: Azure, instead: str = MACHINE) -> Release:
    instead_url = f"{azure.url}{instead}/deallocate" if instead else ""
    return Release(f"{azure.url}/group", f"{azure.url}/metadata/identity/oauth2/token?x=y", instead_url)


def test_a_restored_machine_that_is_locked_switches_itself_off_under_the_name_that_it_has_now(azure: Azure) -> None:
    azure.answers = [(409, b'{"error": {"code": "ScopeLocked"}}')]
    release(azure).carry_out(lambda _: None)
    assert azure.asked[-1] == f"POST {OWN}/deallocate"


def test_a_machine_that_can_be_deleted_asks_for_nothing_else(azure: Azure) -> None:
    azure.answers = [(202, b"")]
    release(azure).carry_out(lambda _: None)
    assert [one for one in azure.asked if not one.startswith("/metadata/identity")] == ["DELETE /group"]


def test_a_role_that_has_not_spread_yet_is_waited_for(azure: Azure) -> None:
    azure.answers = [(403, b"{}"), (403, b"{}"), (202, b"")]
    pauses: list[float] = []
    release(azure, instead="").carry_out(pauses.append)
    assert azure.asked.count("DELETE /group") == 3 and pauses == [1.0, 2.0]

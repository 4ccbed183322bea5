"""The login of a VM for Azure Container Registry, with a metadata service and a registry that answer as theirs do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from stoker.providers.azure.node.registry import ANYBODY, AUDIENCE, registry_login


class RegistryAndMetadata(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, list[str]]]] = []
    refuses: ClassVar[bool] = False

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        assert self.headers["Metadata"] == "true"
        self.asked.append(query)
        self._answer(200, {"access_token": "of-the-vm"})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.asked.append(form)
        self._answer(*((401, {}) if self.refuses else (200, {"refresh_token": "of-the-registry"})))

    def _answer(self, status: int, body: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def place() -> Iterator[str]:
    RegistryAndMetadata.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), RegistryAndMetadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_identity_of_a_vm_is_exchanged_for_a_token_of_the_registry(place: str) -> None:
    found = registry_login(place, f"http://{place}/token?api-version=1&resource=", "http")
    assert found == (ANYBODY, "of-the-registry")
    metadata, exchange = RegistryAndMetadata.asked
    assert metadata["resource"] == [AUDIENCE]
    assert exchange == {"grant_type": ["access_token"], "service": [place], "access_token": ["of-the-vm"]}


def test_without_the_role_or_for_other_registries_there_is_no_login(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RegistryAndMetadata, "refuses", True)
    assert registry_login(place, f"http://{place}/token?api-version=1&resource=", "http") is None
    assert registry_login("registry.example.org") is None
    assert len(RegistryAndMetadata.asked) == 2

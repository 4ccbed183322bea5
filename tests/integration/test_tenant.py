"""A machine that costs money leaves by itself when nobody renews its lease: real agents, a real token and deletion."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from agentnode import RUN, Node

from stoker.model import layout
from stoker.model.lease import Lease
from stoker.model.report import Outcome, Phase
from stoker.model.wire import dump

TRAINING = """
    import time
    print("training", flush=True)
    time.sleep(300)
"""


class Cloud:
    """Gives tokens and takes deletions; the first two it refuses."""

    def __init__(self) -> None:
        self.deletions: list[str] = []
        self.posts: list[str] = []
        self.locked = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                good = self.headers.get("Metadata") == "true"
                self._answer(200 if good else 400, {"access_token": "t0ken", "expires_in": "3600"})

            def do_DELETE(self) -> None:
                outer.deletions.append(f"{self.path} {self.headers.get('Authorization')}")
                if outer.locked:
                    return self._answer(409, {"error": {"code": "ScopeLocked"}})
                return self._answer(503 if len(outer.deletions) < 2 else 202, {})

            def do_POST(self) -> None:
                outer.posts.append(f"{self.path} {self.headers.get('Authorization')}")
                self._answer(202, {})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    yield made
    made.server.shutdown()


def move_in(node: Node, cloud: Cloud, lease_s: float) -> subprocess.Popen[bytes]:
    config = {
        "store": node.store.url,
        "orders": layout.orders(RUN, node.attempt),
        "lease_s": lease_s,
        "release": {
            "url": f"{cloud.url}/group",
            "token_url": f"{cloud.url}/token",
            "instead_url": f"{cloud.url}/deallocate",
        },
        "arguments": {"--folder": str(node.folder), "--environments": str(node.environments)},
        "variables": {"STOKER_NODE_KEY": node.key},
    }
    path = node.root / "node.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-I", "-S", str(node.agent), "tenant", "--config", str(path)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def renew(node: Node, number: int, seconds: float) -> None:
    node.store.put(layout.lease(RUN, node.attempt), dump(Lease(number, seconds)))


def test_a_node_whose_lease_is_not_renewed_saves_reports_and_removes_itself(node: Node, cloud: Cloud) -> None:
    files = {"train.py": TRAINING}
    node.order("python train.py", files)
    tenant = move_in(node, cloud, 4.0)
    assert tenant.wait(60) == 0
    report = node.report()
    assert report.phase is Phase.DONE
    assert report.outcome is Outcome.EVICTED
    assert not report.stays
    assert cloud.deletions == ["/group Bearer t0ken", "/group Bearer t0ken"], "a refused deletion is tried again"
    assert "training" in node.store.get(layout.log(RUN, 1, 0)).decode()


def test_a_node_stays_as_long_as_its_lease_is_renewed(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    renew(node, 1, 600.0)
    tenant = move_in(node, cloud, 1.0)
    try:
        node.prints(b"training")
        with pytest.raises(subprocess.TimeoutExpired):
            tenant.wait(3)
        assert cloud.deletions == []
        renew(node, 2, 0.0)
        assert tenant.wait(60) == 0
        assert cloud.deletions
    finally:
        tenant.kill()


def test_a_machine_whose_run_has_ended_waits_for_its_removal_until_the_lease_is_over(node: Node, cloud: Cloud) -> None:
    node.order("true")
    tenant = move_in(node, cloud, 3.0)
    node.reaches(Phase.DONE)
    assert tenant.poll() is None
    assert cloud.deletions == []
    assert tenant.wait(60) == 0
    assert cloud.deletions


def test_a_machine_that_is_shut_down_is_not_removed(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    tenant = move_in(node, cloud, 600.0)
    node.prints(b"training")
    tenant.send_signal(signal.SIGTERM)
    tenant.wait(60)
    assert cloud.deletions == []
    assert node.report().outcome is Outcome.EVICTED
    assert node.report().stays, "the machine may be there again in a moment"
    assert node.processes() == []


def test_a_machine_that_may_not_be_deleted_is_switched_off_for_good(node: Node, cloud: Cloud) -> None:
    cloud.locked = True
    node.order("true")
    assert move_in(node, cloud, 2.0).wait(60) == 0
    assert cloud.posts == ["/deallocate Bearer t0ken"]

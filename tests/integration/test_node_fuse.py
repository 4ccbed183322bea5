"""A node with a budget limit, on real processes: it saves, stops and is removed in time, without a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from agentnode import CLOUD, RUN, Node, eventually

from stoker.model.cause import Cause
from stoker.model.orders import Orders, Wishes
from stoker.model.run.money import Fuse
from stoker.model.run.report import Outcome, Phase
from stoker.model.wire import dump, load
from stoker.model.workspace import layout

# Saves when it is asked to, and not before.
HEEDS = """
    import os, signal, sys, time
    from pathlib import Path

    def save(*_):
        Path(os.environ["STOKER_CHECKPOINTS"], "state").write_text("everything")
        print("saved", flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)
    print("training", flush=True)
    time.sleep(300)
"""
# Knows nothing of notices: it writes where it always did.
UNPREPARED = """
    import os, time
    from pathlib import Path

    print("training", flush=True)
    for step in range(3000):
        part = Path(os.environ["STOKER_CHECKPOINTS"], "part")
        part.write_text(str(step))
        part.replace(part.with_name("state"))
        time.sleep(0.1)
"""


def fuse(seconds: float, usd_per_hour: str = "36") -> Fuse:
    """At a cent a second."""
    stop_at = Decimal(usd_per_hour) * Decimal(str(seconds)) / 3600
    return Fuse(stop_at, Decimal(0), Decimal(usd_per_hour), datetime.now(UTC), why="its budget of $1.00")


def with_fuse(node: Node, given: Fuse) -> None:
    key = layout.orders(RUN, node.attempt)
    orders = load(Orders, node.store.get(key))
    node.store.put(key, dump(Orders(**{**_fields(orders), "fuse": given})))


def _fields(orders: Orders) -> dict[str, Any]:
    return {name: getattr(orders, name) for name in Orders.__dataclass_fields__}


def tell(node: Node, given: Fuse) -> None:
    node.store.put(layout.wishes(RUN, node.attempt), dump(Wishes(fuse=given)))


def checkpoint(node: Node) -> bytes:
    (newest,) = sorted(node.store.list(layout.checkpoint_sets(RUN)), key=lambda one: one.key)[-1:]
    sha256 = json.loads(node.store.get(newest.key))["entries"][0]["sha256"]
    return node.store.get(layout.checkpoint_file(RUN, sha256))


def test_a_script_that_heeds_the_signal_saves_and_the_attempt_ends_for_its_budget(node: Node) -> None:
    node.order("python train.py", {"train.py": HEEDS})
    with_fuse(node, fuse(3600))
    agent = node.start()
    node.prints(b"training")
    tell(node, fuse(7))
    report = node.finish(agent)
    assert (report.outcome, report.cause) == (Outcome.BUDGET_REACHED, Cause.FUSE_HEEDED)
    assert "$1.00" in report.message
    assert checkpoint(node) == b"everything"
    assert "$1.00" in node.events("fuse")[0]


def test_a_script_that_knows_of_nothing_works_to_the_last_moment_and_its_checkpoint_is_kept(node: Node) -> None:
    node.order("python train.py", {"train.py": UNPREPARED})
    with_fuse(node, fuse(3600))
    agent = node.start()
    node.prints(b"training")
    tell(node, fuse(9))
    report = node.finish(agent)
    assert (report.outcome, report.cause) == (Outcome.BUDGET_REACHED, Cause.FUSE_BLOWN)
    assert "$1.00" in report.message
    assert int(checkpoint(node)) > 0
    assert report.save_s > 0


def test_what_the_server_says_later_counts_and_what_comes_in_time_calls_the_stop_off(node: Node) -> None:
    node.order("python train.py", {"train.py": UNPREPARED})
    with_fuse(node, fuse(3600))
    agent = node.start()
    node.prints(b"training")
    tell(node, fuse(4.9))
    eventually(lambda: node.events("fuse"), "the notice")
    tell(node, fuse(3600, "72"))
    eventually(lambda: node.events("fuse-withdrawn"), "its withdrawal")
    tell(node, fuse(1.0))
    assert node.finish(agent).outcome is Outcome.BUDGET_REACHED


class Cloud:
    """Gives tokens, and notes when it is asked to delete."""

    def __init__(self) -> None:
        self.deleted_at: list[float] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer({"access_token": "t0ken"})

            def do_DELETE(self) -> None:
                outer.deleted_at.append(time.monotonic())
                self._answer({})

            def _answer(self, body: dict[str, Any]) -> None:
                self.send_response(200)
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


def move_in(node: Node, cloud: Cloud, **more: Any) -> subprocess.Popen[bytes]:
    config = {
        "store": node.store.url,
        "orders": layout.orders(RUN, node.attempt),
        "lease_s": 600.0,
        "release": {"url": f"{cloud.url}/group", "token_url": f"{cloud.url}/token"},
        "arguments": {"--folder": str(node.folder), "--environments": str(node.environments), "--cloud": CLOUD},
        "variables": {"STOKER_NODE_KEY": node.key},
        **more,
    }
    path = node.root / "node.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-I", "-S", str(node.agent), "tenant", "--config", str(path)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_a_machine_goes_as_soon_as_its_agent_has_stopped_for_the_money(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": HEEDS})
    with_fuse(node, fuse(3600))
    tenant = move_in(node, cloud)
    node.prints(b"training")
    tell(node, fuse(7))
    assert tenant.wait(60) == 0
    assert (node.report().phase, node.report().outcome) == (Phase.DONE, Outcome.BUDGET_REACHED)
    assert len(cloud.deleted_at) == 1


def test_a_machine_whose_agent_hangs_goes_in_time_anyway(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": UNPREPARED})
    with_fuse(node, fuse(3600))
    tenant = move_in(node, cloud)
    node.prints(b"training")
    tell(node, fuse(7))
    eventually(lambda: word(node)["release_at"] < time.monotonic() + 10, "the agent to hear of it")
    release_at = word(node)["release_at"]
    agent = json.loads((node.folder / "errand.json").read_text())["agent"]
    os.kill(agent, signal.SIGSTOP)
    assert tenant.wait(60) == 0
    assert node.report().outcome is None
    assert cloud.deleted_at[0] >= release_at, "and not before"
    node.end()


def word(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.folder / "fuse.json").read_text())
    return found


def test_a_machine_that_waits_for_orders_goes_when_its_money_is_spent(node: Node, cloud: Cloud) -> None:
    """Like one that was requested before an eviction, when the server has died."""
    node.order("true")
    node.store.delete(layout.orders(RUN, node.attempt))
    given = {"seconds": 3.0, "as_of": datetime.now(UTC).isoformat()}
    arguments = {
        "--folder": str(node.folder),
        "--environments": str(node.environments),
        "--cloud": CLOUD,
        "--events": f"{cloud.url}/events",
    }
    tenant = move_in(node, cloud, spend=given, arguments=arguments)
    assert tenant.wait(60) == 0
    assert cloud.deleted_at
    node.end()

"""The remote shell between nodes: who may use it, and what comes back."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from stoker.agent.processes.remote import LOOPBACK, CommandDoor, call, interface_to, reaching
from stoker.model.job.job import Job
from stoker.model.orders import Orders

ORDERS = Orders("r1", "ants-1", 2, 1, "key-1", Job(name="ants", run="true"), "snap", "python", {}, 2, LOOPBACK)


def calling(tmp_path: Path, door: CommandDoor, secret: str, command: str, codes: list[int]) -> threading.Thread:
    peers = tmp_path / f"{secret}.json"
    peers.write_text(json.dumps({"secret": secret, "hosts": {"peer": [LOOPBACK, door.port]}}))
    thread = threading.Thread(target=lambda: codes.append(call(peers, "peer", command)), daemon=True)
    thread.start()
    return thread


def test_only_a_caller_that_knows_the_secret_is_heard_and_gets_the_exit_code(tmp_path: Path) -> None:
    door, codes = CommandDoor(ORDERS), list[int]()
    stranger = calling(tmp_path, door, "wrong", "evil", codes)
    while door._calls.empty():
        time.sleep(0.01)
    peer = calling(tmp_path, door, "right", "orted --here", codes)
    command, line = door.take("right", lambda: time.sleep(0.01))
    stranger.join(10)
    assert (command, codes) == ("orted --here", [1]), "the stranger was hung up on"
    os.write(line, b"7\n")
    os.close(line)
    peer.join(10)
    assert codes == [1, 7]
    assert reaching([LOOPBACK], door.port, ORDERS) == [], "it listens no longer"


def test_a_connection_that_breaks_counts_as_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    door, codes = CommandDoor(ORDERS), list[int]()
    peer = calling(tmp_path, door, "right", "orted", codes)
    _, line = door.take("right", lambda: time.sleep(0.01))
    os.close(line)
    peer.join(10)
    assert codes == [1]
    assert "lost the connection to peer" in capsys.readouterr().err


def test_a_door_answers_those_who_only_ask_which_attempt_it_is() -> None:
    door = CommandDoor(ORDERS)
    try:
        assert reaching([LOOPBACK], door.port, ORDERS) == [LOOPBACK]
    finally:
        door.close()


@pytest.mark.skipif(sys.platform != "linux", reason="names of interfaces are of Linux")
def test_the_interface_on_the_way_to_an_address_is_known_by_its_name() -> None:
    assert interface_to(LOOPBACK) == "lo"
    assert interface_to("no address") == "", "gloo then chooses by itself"

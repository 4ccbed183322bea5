"""`stoker tensorboard` as a user has it: TensorBoard itself, on a run that trains."""

from __future__ import annotations

import json
import signal
import socket
import tempfile
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

pytestmark = pytest.mark.heavy

TRAINING = """\
import json, os, pathlib, time
for step in range(1000):
    print(json.dumps({"step": step, "loss": 1 / (step + 1)}), flush=True)
    if pathlib.Path("FOLDER/enough").exists(): break
    time.sleep(0.2)
"""


def free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


def curve(port: int, run: str) -> list[Any]:
    with suppress(OSError, ValueError):
        url = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run={run}&tag=loss"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return list(json.loads(answer.read()))
    return []


def folders() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("stoker-tensorboard-*"))


def test_tensorboard_shows_a_run_while_it_trains_and_leaves_nothing(shell: Shell) -> None:
    before, port = folders(), free_port()
    shell.write("train.py", TRAINING.replace("FOLDER", str(shell.folder)))
    shell.write("stoker.yaml", "name: live\nrun: python train.py\n")
    shell.stoker("run", "--detach")
    board = shell.start("tensorboard", "live-1", "--port", str(port))
    try:
        first = shell.wait_for(lambda: curve(port, "live-1"), "its first points")
        assert shell.facts("live-1")["state"] == "running"
        shell.wait_for(lambda: len(curve(port, "live-1")) > len(first), "later points")
        _, step, value = curve(port, "live-1")[3]
        assert (step, value) == (3, 0.25)
        assert str(port) in shell.stoker("tensorboard", "live-1", "--port", str(port), code=2).stderr
    finally:
        (shell.folder / "enough").touch()
        board.send_signal(signal.SIGINT)
        out, err = board.communicate(timeout=60)
    assert out.strip() == f"http://localhost:{port}"
    assert board.returncode == 130, err
    assert folders() <= before
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), 2):
        pass

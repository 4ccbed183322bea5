"""`make demo` tells the whole mission, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from project import ROOT, environment

STORY = (
    "$ stoker run spot.yaml --twin",
    "on azure-twin",
    "$ stoker twin evict films-1",
    "attempt 2 starts",
    "resumed from step-",
    "for you:",
    " 10. ",
    "films-1 succeeded",
    "`hr@10 >= 0.8` was reached",
    "recommendations.html",
    "useful",
    "attempt 1 evicted",
    "$ stoker cleanup",
    "0 resources left, $0.00/h",
    "the twin is down",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_tells_the_whole_mission_and_leaves_nothing_running(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    env = environment(TMPDIR=str(tmp_path))
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=890)
    assert done.returncode == 0, done.stdout
    at = 0
    for words in STORY:
        assert words in done.stdout[at:], f"`{words}` is missing, or told too early:\n{done.stdout}"
        at = done.stdout.index(words, at)
    assert not list(tmp_path.glob("stoker-demo-*"))
    give_up = time.monotonic() + 10  # a process may take a moment to stop
    while left := [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in _environ(pid)]:
        assert time.monotonic() < give_up, [(pid / "cmdline").read_bytes() for pid in left]
        time.sleep(0.1)


def _environ(process: Path) -> bytes:
    with suppress(OSError):
        return (process / "environ").read_bytes()
    return b""

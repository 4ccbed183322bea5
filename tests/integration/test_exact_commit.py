"""`kill -9` at two hundred random moments of saving: what is newest can always be read, and nothing safe is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HOST = """
import array, contextlib, io, json, os, random, signal, sys, time
from stoker.checkpoint import Checkpoint

folder = sys.argv[1]
points = int(sys.argv[2])


class Thing:
    def __init__(self):
        self.numbers = array.array("d", bytes(8 * 2000))
        self.large = array.array("d", bytes(5 << 20))

    def state_dict(self):
        return {"numbers": self.numbers, "large": self.large}

    def load_state_dict(self, state):
        self.numbers, self.large = state["numbers"], state["large"]


def begin():
    thing = Thing()
    with contextlib.redirect_stderr(io.StringIO()) as said:
        state = Checkpoint(folder=folder, every=1, keep=2, thing=thing)
    return thing, state, said.getvalue()


def train(report):
    thing, state, _ = begin()
    os.write(report, b"0\\n")
    while True:
        thing.numbers[state.steps % 2000] = thing.numbers[0] + state.steps
        if state.steps % 7 == 0:
            thing.large[0] = state.steps
        state["said"] = state.steps + 1
        state.step()
        if state.steps % 3 == 0:
            state.finish()
            os.write(report, f"{state.last_save.name[5:14]}\\n".encode())


found = {"restored": [], "complaints": [], "lost": 0, "torn": 0}
safe = 0
window_s = 0.05  # grows while a slow disk lets no save come to its end
for _ in range(points):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            train(writing)
        finally:
            os._exit(1)
    os.close(writing)
    reports = os.read(reading, 2).split()  # it has begun
    time.sleep(random.uniform(0.0, window_s))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    reports += os.read(reading, 1 << 20).split()
    os.close(reading)
    safe = max([safe, *map(int, reports)])
    thing, state, said = begin()
    found["lost"] += state.steps < safe
    found["torn"] += bool(state.restored) and (
        state["said"] != state.steps or thing.large[0] != (state.steps - 1) // 7 * 7
    )
    window_s = 0.05 if state.steps > (found["restored"] or [0])[-1] else min(1.3 * window_s, 1.0)
    found["restored"].append(state.steps)
    if "not used" in said:
        found["complaints"].append(said)
print(json.dumps(found))
"""


@pytest.mark.parametrize("points", [40, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.timeout(400)
def test_kill_at_any_moment_leaves_a_newest_that_is_whole(tmp_path: Path, points: int) -> None:
    script = tmp_path / "host.py"
    script.write_text(HOST, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "kept"), str(points)],
        env=env,
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["complaints"] == []
    assert (found["lost"], found["torn"]) == (0, 0)
    assert found["restored"] == sorted(found["restored"])
    assert len(set(found["restored"])) > points / 20, "hardly anything was saved between the kills"

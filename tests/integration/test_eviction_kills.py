"""`kill -9` of the agent and its script in the middle of commits: what is restored is always a complete checkpoint."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest
from agentnode import RUN, Node, eventually

from stoker.model.workspace import layout

# An agent that looks more often and waits less than real ones, so that a second is full of commits.
HASTY = """
import sys
from stoker.agent.checkpoints import keeper
from stoker.agent.checkpoints.folders import growing
from stoker.agent.checkpoints.folders import choosing
choosing.QUIET_S = growing.QUIET_S = 0.03
keeper.EVERY_S = keeper.EVERY_RESTLESS_S = 0.005
keeper.SHARE = 1
from stoker.agent.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

# Goes on from the newest checkpoint, which must be whole, and writes new ones as fast as it can. Half of the runs give
# each checkpoint a folder of its own, half overwrite the same files in place.
SCRIPT = """
    import hashlib, os, random, sys, time
    from pathlib import Path
    top, style = Path("checkpoints"), sys.argv[1]
    PARTS = ("model", "optimizer", "state")
    def place(number): return top / f"step-{number:06}" if style == "numbered" else top
    def newest():
        if style == "numbered":
            return max((int(one.name[5:]) for one in top.glob("step-*")), default=0)
        return int((top / "state").read_text().split()[0]) if (top / "state").exists() else 0
    number = newest()
    if number:
        parts = {name: (place(number) / name).read_text() for name in PARTS}
        numbers = {text.split()[0] for text in parts.values()}
        assert numbers == {str(number)}, parts
        for name, text in parts.items():
            head, _, digest = text.rpartition(" ")
            assert hashlib.sha256(head.encode()).hexdigest() == digest, (name, text)
    print("resumed", number, flush=True)
    chance = random.Random()
    while True:
        number += 1
        place(number).mkdir(exist_ok=True)
        for name in PARTS:
            head = f"{number} " + "x" * chance.randint(1, 200_000)
            with (place(number) / name).open("w") as file:
                file.write(head)
                file.flush()
                file.write(" " + hashlib.sha256(head.encode()).hexdigest())
        if style == "numbered":
            for old in sorted(top.glob("step-*"))[:-3]:
                for file in old.iterdir(): file.unlink()
                old.rmdir()
        time.sleep(chance.uniform(0.05, 0.09))
"""


def start(node: Node) -> subprocess.Popen[bytes]:
    paths = ["--folder", str(node.folder), "--environments", str(node.environments)]
    orders = ["--store", node.store.url, "--orders", layout.orders(RUN, node.attempt)]
    command = [sys.executable, "-c", HASTY, "run", *orders, *paths]
    return subprocess.Popen(command, env={**os.environ, "STOKER_NODE_KEY": node.key}, stdin=subprocess.DEVNULL)


def check_killing(node: Node, style: str, points: int, seed: int) -> None:
    chance = random.Random(seed)
    resumed = [one_attempt(node, style, attempt, chance) for attempt in range(1, points + 2)]
    assert resumed == sorted(resumed), "a later attempt never has less"
    assert resumed[-1] > points / 2, resumed


def one_attempt(node: Node, style: str, attempt: int, chance: random.Random) -> int:
    """Where it resumed; it is killed at some moment."""
    node.folder = node.root / f"node-{attempt}"
    node.order(f"python train.py {style}", {"train.py": SCRIPT}, attempt=attempt)
    agent = start(node)
    eventually(lambda: b"\n" in node.log() or agent.poll() is not None, "the script")
    words = node.log().split()
    assert words[0] == b"resumed", node.log().decode()
    assert node.events("quarantined") == []
    if chance.random() < 0.7:  # now and then before anything is committed
        prefix = layout.checkpoint_set(RUN, attempt, 0).rpartition("-")[0]
        eventually(
            lambda: any(one.key.startswith(prefix) for one in node.store.list(layout.checkpoint_sets(RUN))), "a commit"
        )
    time.sleep(chance.uniform(0, 0.1))
    node.kill()
    agent.wait()
    return int(words[1])


@pytest.mark.parametrize("style", ["numbered", "overwritten"])
def test_a_kill_in_the_middle_of_commits_never_leaves_an_unreadable_checkpoint(node: Node, style: str) -> None:
    check_killing(node, style, 8, seed=len(style))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("style", ["numbered", "overwritten"])
def test_a_hundred_kills_never_leave_an_unreadable_checkpoint(node: Node, style: str) -> None:
    """Two hundred with both styles."""
    check_killing(node, style, 100, seed=len(style) + 1)

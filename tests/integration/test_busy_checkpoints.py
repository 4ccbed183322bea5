"""Checkpoint folders that change all the time, on a real agent: evicted by `kill -9`, and resumed from what was
saved."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agentnode import Node, eventually
from test_eviction_notice import begin, give, sets

# A hundred files, each written once, as XGBoost's `TrainingCheckPoint` does it.
SERIES = """
    import sys, time
    from pathlib import Path
    folder = Path("checkpoints") / sys.argv[1]
    folder.mkdir(exist_ok=True)
    first = max((int(one.stem[6:]) + 1 for one in folder.glob("model_*.json")), default=0)
    print("from", first, flush=True)
    for number in range(first, 100):
        with open(folder / f"model_{number}.json", "w") as file:
            for _ in range(10): file.write(f"{number} " * 100)
        if "latest" in sys.argv: (folder / "latest").write_text(str(number))
        print("done", number, flush=True)
        time.sleep(0.15)
"""

# Trials in a database that is open all the time, in the manner of Optuna's storage.
STUDY = """
    import sqlite3, sys, time
    study = sqlite3.connect("checkpoints/study.db")
    study.execute(f"PRAGMA journal_mode={sys.argv[1]}")
    study.execute("CREATE TABLE IF NOT EXISTS trials (number INTEGER PRIMARY KEY, value REAL)")
    assert study.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    first = study.execute("SELECT count(*) FROM trials").fetchone()[0]
    print("from", first, flush=True)
    for number in range(first, 200):
        with study: study.execute("INSERT INTO trials VALUES (?, ?)", (number, number / 7))
        print("done", number, flush=True)
        time.sleep(0.05)
"""

# Ways to save that are whole at every moment, and never rest. Files go 0.9 s after they were written.
SAVES = """
    import os, shutil, sys, time
    from pathlib import Path
    folder, how = Path("checkpoints"), sys.argv[1]
    def newest():
        if how == "linked": return (folder / "last.pt").read_text()
        if how == "pointed": return (folder / (folder / "latest").read_text()).read_text()
        found = max((int(one.name[5:]) for one in folder.glob("step-*")), default=-1)
        parts = {(folder / f"step-{found}" / str(part)).read_text() for part in range(300)}
        assert len(parts) == 1, parts
        return parts.pop()
    first = int(newest().removesuffix(" end")) + 1 if any(folder.iterdir()) else 0
    print("from", first, flush=True)
    for number in range(first, 1000):
        if how == "folders":
            (folder / f"step-{number}").mkdir()
            for part in range(300): (folder / f"step-{number}" / str(part)).write_text(f"{number} end")
            shutil.rmtree(folder / f"step-{number - 3}", ignore_errors=True)
        else:
            (folder / f"step-{number}.pt").write_text(f"{number} end")
            if how == "linked":
                os.link(folder / f"step-{number}.pt", "last")
                os.replace("last", folder / "last.pt")
            if how == "pointed": (folder / "latest").write_text(f"step-{number}.pt")
            (folder / f"step-{number - 3}.pt").unlink(missing_ok=True)
        print("done", number, flush=True)
        time.sleep(0.3)
"""


def done(node: Node) -> int:
    found = re.findall(rb"^done (\d+)\n", node.log(), re.M)
    return int(found[-1]) if found else -1


def first(node: Node) -> int:
    """The words of a line may come one by one."""
    line: re.Match[bytes] = eventually(lambda: re.match(rb"from (\d+)\n", node.log()), "the first line")
    return int(line[1])


@pytest.mark.parametrize("arguments", [".", "xgb", ". latest"])
def test_files_written_once_every_moment_are_resumed_from(node: Node, arguments: str) -> None:
    begin(node, arguments, SERIES)
    eventually(lambda: done(node) >= 20, "twenty files")
    give(node, 3)
    eventually(lambda: node.events("notice-committed"), "the commit")
    time.sleep(0.5)
    reached = done(node)
    node.kill()
    assert node.events("checkpoint-left-out") == []
    begin(node, arguments, SERIES, attempt=2)
    assert reached - 8 <= first(node) <= reached + 3


@pytest.mark.parametrize("how", ["linked", "pointed", "folders"])
def test_whatever_is_whole_at_a_notice_is_resumed_from_although_the_script_continues_and_removes_it(
    node: Node, how: str
) -> None:
    begin(node, how, SAVES)
    eventually(lambda: done(node) >= 6, "six saves")
    give(node, 3)
    eventually(lambda: node.events("notice-committed"), "the commit")
    time.sleep(1.0)
    reached = done(node)
    node.kill()
    assert node.events("checkpoint-left-out") == []
    begin(node, how, SAVES, attempt=2)
    assert reached - 3 <= first(node) <= reached + 2


@contextmanager
def starved(agent: subprocess.Popen[bytes], share: float) -> Iterator[None]:
    """The agent gets this share of one processor, as on a node whose script runs far more threads than it has."""
    over, began, used_s = threading.Event(), time.monotonic(), processor_s(agent.pid)

    def hold_back() -> None:
        while not over.wait(0.004):
            enough = processor_s(agent.pid) - used_s > share * (time.monotonic() - began)
            agent.send_signal(signal.SIGSTOP if enough else signal.SIGCONT)
        agent.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=hold_back)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def processor_s(pid: int) -> float:
    """Of all threads of a process."""
    found = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in found) / 1e9


@pytest.mark.heavy
def test_a_notice_is_heeded_by_an_agent_that_hardly_gets_a_processor(node: Node) -> None:
    agent = begin(node, "folders", SAVES)
    eventually(lambda: done(node) >= 3, "three saves")
    with starved(agent, 0.06):
        at_notice = done(node)
        give(node, 7)
        time.sleep(7)
    node.kill()
    begin(node, "folders", SAVES, attempt=2)
    assert first(node) > at_notice


def test_without_a_notice_only_the_last_seconds_are_lost(node: Node) -> None:
    begin(node, ".", SERIES)
    eventually(lambda: done(node) >= 50, "fifty files")
    reached = done(node)
    node.kill()
    begin(node, ".", SERIES, attempt=2)
    assert first(node) >= reached - 35


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_rows_of_a_database_that_stays_open_are_there_after_an_eviction(node: Node, journal: str) -> None:
    begin(node, journal, STUDY)
    eventually(lambda: done(node) >= 20, "twenty trials")
    give(node, 3)
    eventually(lambda: node.events("notice-committed"), "the commit")
    time.sleep(0.5)
    reached = done(node)
    node.kill()
    assert {one.path for one in sets(node)[-1].entries} == {"checkpoints/study.db"}, "and nothing beside it"
    assert node.events("checkpoint-left-out") == []
    begin(node, journal, STUDY, attempt=2)
    assert reached - 15 <= first(node) <= reached + 3
    eventually(lambda: done(node) >= reached + 2, "more trials")


def test_a_database_that_stays_locked_is_named_at_once(node: Node) -> None:
    script = """
        import sqlite3, time
        study = sqlite3.connect("checkpoints/study.db", isolation_level=None)
        study.execute("CREATE TABLE trials (number)")
        study.execute("BEGIN EXCLUSIVE")
        print("from", 0, flush=True)
        while True:
            study.execute("INSERT INTO trials VALUES (1)")
            time.sleep(0.05)
    """
    begin(node, script=script)
    [text] = eventually(lambda: node.events("checkpoint-left-out"), "the words", 20)
    assert text.startswith("`checkpoints/study.db` is in no checkpoint: ")
    assert "commit more often" in text

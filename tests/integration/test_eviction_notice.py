"""What happens on a notice, with a real agent and real scripts: who gets which signal, and what is saved when."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from agentnode import RUN, Node, eventually

from stoker.agent.processes.family import AHEAD
from stoker.model.cause import Cause
from stoker.model.orders import Notice, Wishes
from stoker.model.run.report import Outcome, Phase
from stoker.model.snapshot import CheckpointSet
from stoker.model.wire import dump, load
from stoker.model.workspace import layout

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")

# Counts steps; the checkpoint is one number. `ends`: on SIGTERM it saves and exits, as well-behaved scripts do.
SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    state = Path("checkpoints/state")
    rank = os.environ.get("RANK", "0")
    step = int(state.read_text()) if state.exists() else 0
    told = []
    if "ends" in sys.argv or f"rank-{rank}-ends" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    print("from", step, flush=True)
    def save():
        Path(f"part-{rank}").write_text(str(step))
        os.replace(f"part-{rank}", state)
    while step < 400 and not told:
        step += 1
        time.sleep(0.02)
        if step % 20 == 0 and "seldom" not in sys.argv and rank == "0": save()
    if rank == "0": save()
    print("saved", step, flush=True)
"""


def give(node: Node, seconds: float, late_s: float = 0.0) -> Notice:
    at = datetime.now(UTC) - timedelta(seconds=late_s)
    notice = Notice(at, at + timedelta(seconds=seconds))
    node.store.put(layout.wishes(RUN, node.attempt), dump(Wishes(notice=notice)))
    return notice


def withdraw(node: Node) -> None:
    node.store.put(layout.wishes(RUN, node.attempt), dump(Wishes()))


def begin(
    node: Node, arguments: str = "", script: str = SCRIPT, attempt: int = 1, **job: object
) -> subprocess.Popen[bytes]:
    node.folder = node.root / f"node-{attempt}"
    node.order(f"python train.py {arguments}", {"train.py": script}, attempt=attempt, **job)
    started = node.start()
    node.prints(b"from")
    return started


def sets(node: Node) -> list[CheckpointSet]:
    found = [load(CheckpointSet, node.store.get(one.key)) for one in node.store.list(layout.checkpoint_sets(RUN))]
    return sorted(found, key=lambda one: one.position)


def newest(node: Node) -> bytes:
    entry = next(one for one in sets(node)[-1].entries if one.path == "checkpoints/state")
    return node.store.get(layout.checkpoint_file(RUN, entry.sha256))


def last_word(node: Node) -> int:
    return int(node.log().split()[-1])


def test_a_script_that_saves_on_sigterm_loses_no_step(node: Node) -> None:
    agent = begin(node, "ends seldom")
    notice = give(node, 30)
    report = node.finish(agent)
    assert (report.outcome, report.exit_code) == (Outcome.EVICTED, 0)
    saved = last_word(node)
    assert newest(node) == str(saved).encode()
    assert len(node.events("notice-told")) == 1
    [done] = node.events("notice-done")
    for part in ("of 30 s notice", "sent SIGTERM after", "the script ended after", "checkpoint 1 was saved after"):
        assert part in done
    assert (report.at - notice.at).total_seconds() < 10, "and does not wait for the end of the notice"
    again = begin(node, "seldom", attempt=2)
    assert node.log().split()[:2] == [b"from", str(saved).encode()]
    assert len(node.events("restored")) == 1
    assert node.finish(again).outcome is Outcome.SUCCEEDED


def test_the_notice_file_says_when(node: Node) -> None:
    script = """
        import json, os, time
        notice = os.environ["STOKER_NOTICE"]
        print("from", flush=True)
        while not os.path.exists(notice): time.sleep(0.01)
        print(open(notice).read(), flush=True)
        while os.path.exists(notice): time.sleep(0.01)
        print("gone", flush=True)
    """
    agent = begin(node, script=script)
    notice = give(node, 30)
    eventually(lambda: b"}" in node.log(), "the notice")
    [said] = [line for line in node.log().splitlines() if line.startswith(b"{")]
    words = {"kind": "evict", "at": notice.at.timestamp(), "deadline": notice.deadline.timestamp()}
    assert said.decode() == str(words).replace("'", '"')
    withdraw(node)
    assert node.finish(agent).outcome is Outcome.SUCCEEDED, "a notice that was withdrawn is no eviction"
    assert len(node.events("notice-withdrawn")) == 1
    assert node.events("notice-told") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may go first")
def test_the_agent_goes_before_its_script_while_there_is_a_notice(node: Node) -> None:
    agent = begin(node)
    scripts = [pid for pid in node.processes() if pid != agent.pid]

    def nice(pid: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, pid)

    usual = nice(agent.pid)
    give(node, 30)
    eventually(lambda: nice(agent.pid) == AHEAD, "the agent to go first")
    assert scripts and {nice(pid) for pid in scripts} == {usual}
    withdraw(node)
    eventually(lambda: nice(agent.pid) == usual, "the agent to go back")


def test_a_script_that_does_not_catch_sigterm_works_on_until_the_last_safe_moment(node: Node) -> None:
    agent = begin(node)
    give(node, 4)
    time.sleep(1.0)
    assert node.report().phase is Phase.RUNNING, "it was not killed by a signal"
    eventually(lambda: node.events("notice-committed"), "the last commit")
    time.sleep(1.0)
    node.kill()
    agent.wait()
    assert node.events("notice-told") == []
    assert int(newest(node)) % 20 == 0 and int(newest(node)) >= 60
    begin(node, attempt=2)
    assert node.log().split()[:2] == [b"from", newest(node)]


def test_files_finished_after_the_last_moment_are_still_taken_as_long_as_there_is_time(node: Node) -> None:
    script = """
        import time
        from pathlib import Path
        print("from", flush=True)
        time.sleep(1.9)
        Path("checkpoints/state").write_text("late")
        time.sleep(60)
    """
    begin(node, script=script)
    give(node, 2.5)
    eventually(lambda: sets(node), "the commit", 2.9)
    assert newest(node) == b"late"


def test_what_the_library_saved_is_committed_at_once(node: Node) -> None:
    script = """
        import os, time
        from pathlib import Path
        notice = Path(os.environ["STOKER_NOTICE"])
        print("from", flush=True)
        while not notice.exists(): time.sleep(0.01)
        Path("checkpoints/state").write_text("saved for the notice")
        Path(f"{notice}.saved").write_text('{"step": 7, "seconds": 0.5}')
        while notice.exists(): time.sleep(0.01)
        time.sleep(0.5)
    """
    agent = begin(node, script=script)
    given = time.monotonic()
    give(node, 30)
    eventually(lambda: sets(node), "the commit")
    assert time.monotonic() - given < 5, "long before the end of the notice"
    assert newest(node) == b"saved for the notice"
    eventually(lambda: node.events("notice-committed") and node.events("notice-saved"), "the events")
    assert "at step 7" in node.events("notice-saved")[0]
    assert "checkpoint 1 is saved" in node.events("notice-committed")[0]
    withdraw(node)
    assert node.finish(agent).outcome is Outcome.SUCCEEDED
    assert len(sets(node)) == 1, "a withdrawn notice costs one save"


def test_a_second_notice_after_a_withdrawn_one_counts_again(node: Node) -> None:
    script = SCRIPT.replace("told.append(1)", "told.append(1) if heard else heard.append(print('heard', flush=True))")
    script = script.replace("told = []", "told, heard = [], []")
    agent = begin(node, "ends seldom", script=script)
    give(node, 30)
    node.prints(b"heard")
    withdraw(node)
    eventually(lambda: node.events("notice-withdrawn"), "the withdrawal")
    give(node, 20)
    report = node.finish(agent)
    assert report.outcome is Outcome.EVICTED
    assert len(node.events("notice-told")) == 2
    assert newest(node) == str(last_word(node)).encode()


def test_a_notice_before_the_start_of_the_script_reaches_it_once_it_listens(node: Node) -> None:
    script = "import time; time.sleep(0.5)\n" + "\n".join(line.removeprefix("    ") for line in SCRIPT.splitlines())
    node.order("python train.py ends seldom", {"train.py": script})
    give(node, 30)
    report = node.finish(node.start())
    assert report.outcome is Outcome.EVICTED
    assert newest(node) == str(last_word(node)).encode()


def test_only_the_ranks_that_catch_it_are_signalled(node: Node) -> None:
    agent = begin(node, "rank-0-ends seldom", processes=3, launcher="plain")
    for rank in (1, 2):
        node.prints(b"from", rank)
    give(node, 4)
    node.prints(b"saved", 0)
    time.sleep(0.5)
    assert node.report().phase is Phase.RUNNING
    assert b"saved" not in node.log(1) + node.log(2)
    eventually(lambda: sets(node), "the commit of rank 0's file")
    assert newest(node) == str(last_word(node)).encode()
    node.kill()
    agent.wait()


def test_all_ranks_that_catch_it_end_and_the_run_is_evicted(node: Node) -> None:
    agent = begin(node, "ends seldom", processes=2, launcher="plain")
    node.prints(b"from", 1)
    give(node, 20)
    report = node.finish(agent)
    assert report.outcome is Outcome.EVICTED
    assert b"saved" in node.log(0) and b"saved" in node.log(1)


def test_a_script_that_fails_in_the_middle_of_a_save_does_not_spoil_the_checkpoint(node: Node) -> None:
    script = """
        import time
        from pathlib import Path
        Path("checkpoints/state").write_text("whole")
        print("from", flush=True)
        time.sleep(2)
        with open("checkpoints/state", "w") as file:
            file.write("ha")
            raise OSError("no room for the other half")
    """
    agent = begin(node, script=script)
    assert node.finish(agent).outcome is Outcome.FAILED
    assert newest(node) == b"whole"


def test_an_attempt_that_was_replaced_notices_it_and_ends(node: Node) -> None:
    first = begin(node)
    eventually(lambda: sets(node), "a commit of the first")
    second = begin(node, attempt=2)
    first.wait()
    node.attempt = 1
    assert (node.report().outcome, node.report().cause) == (Outcome.CANCELLED, Cause.FENCED)
    node.attempt = 2
    second.wait()
    assert node.report().outcome is Outcome.SUCCEEDED
    assert sets(node)[-1].attempt == 2 and newest(node) == b"400"


# --- a script that finishes anyway

# Catches SIGTERM, and works until it is finished.
FINISHER = """
    import os, signal, sys, time
    from pathlib import Path
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    print("from", flush=True)
    if "before" in sys.argv: Path(os.environ["STOKER_FINISHED"]).touch()
    print("marked", flush=True)
    while not told: time.sleep(0.01)
    Path("outputs/model").write_text("whole")
    if "after" in sys.argv: Path(os.environ["STOKER_FINISHED"]).touch()
    sys.exit("fails" in sys.argv)
"""


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        ("after", Outcome.SUCCEEDED),  # it got SIGTERM, continued, and reports that it has finished
        ("", Outcome.EVICTED),  # unknown
        ("before", Outcome.EVICTED),  # its training was over, but perhaps not what follows it
        ("after fails", Outcome.EVICTED),
    ],
)
def test_a_script_asked_to_stop_has_finished_if_it_says_so_afterwards(
    node: Node, arguments: str, outcome: Outcome
) -> None:
    agent = begin(node, arguments, script=FINISHER)
    node.prints(b"marked")
    give(node, 30)
    assert node.finish(agent).outcome is outcome


def test_a_library_script_that_finishes_during_a_notice_has_succeeded(node: Node) -> None:
    script = """
        import signal, time
        from stoker.checkpoint import Checkpoint
        signal.signal(signal.SIGTERM, lambda *_: print("heard", flush=True))
        state = Checkpoint(every="1h")
        print("from", state.steps, flush=True)
        for _ in state.range(150):
            time.sleep(0.02)
            state.step()
    """
    agent = begin(node, script=script)
    give(node, 30)
    node.prints(b"heard")
    report = node.finish(agent)
    assert (report.outcome, report.exit_code, report.cause) == (Outcome.SUCCEEDED, 0, Cause.FINISHED)


LIBRARY = """
    import sys, time
    from pathlib import Path
    from stoker.checkpoint import Checkpoint
    state = Checkpoint(every="1h")
    print("from", state.steps, flush=True)
    for step in state.range(100_000):
        time.sleep(0.02)
        with Path(sys.argv[1]).open("a") as log: log.write(f"{step}\\n")
        state.step()
"""


@pytest.mark.parametrize("seconds", [2, 8])
def test_with_notice_no_step_is_lost(node: Node, seconds: float) -> None:
    """It works as long as that is useful, saves, and waits for the shutdown."""
    log = node.root / "steps"
    agent = begin(node, str(log), script=LIBRARY)
    eventually(lambda: log.exists() and len(log.read_text().split()) > 10, "some steps")
    notice = give(node, seconds)
    time.sleep(max((notice.deadline - datetime.now(UTC)).total_seconds(), 0.0))
    node.kill()
    agent.wait()
    before = log.read_text().split()
    assert len(node.events("notice-saved")) == (2 if seconds == 8 else 1)
    agent = begin(node, str(log), script=LIBRARY, attempt=2)
    eventually(lambda: len(log.read_text().split()) > len(before) + 10, "more steps")
    node.kill()
    agent.wait()
    steps = [int(one) for one in log.read_text().split()]
    assert steps == list(range(len(steps)))
    assert seconds < 8 or len(before) > 100, "and most of the notice was used"


def test_a_script_that_waits_for_its_eviction_goes_on_when_it_is_withdrawn(node: Node) -> None:
    log = node.root / "steps"
    agent = begin(node, str(log), script=LIBRARY)
    eventually(lambda: log.exists() and len(log.read_text().split()) > 10, "some steps")
    give(node, 2)
    eventually(lambda: node.events("notice-saved"), "the save")
    saved = len(log.read_text().split())
    time.sleep(0.5)
    assert len(log.read_text().split()) == saved, "it waits"
    withdraw(node)
    eventually(lambda: len(log.read_text().split()) > saved + 10, "more steps")
    node.kill()
    agent.wait()


# --- short notices


@pytest.mark.parametrize("seconds", [8, 0])
def test_a_short_notice_is_used_as_far_as_it_goes(node: Node, seconds: float) -> None:
    """With 8 s a script that listens loses no step; with none at all what was committed is what counts."""
    agent = begin(node, "ends")
    eventually(lambda: sets(node), "the first commit")
    before = int(newest(node))
    give(node, seconds)
    if seconds:
        assert node.finish(agent).outcome is Outcome.EVICTED
        assert newest(node) == str(last_word(node)).encode()
    else:
        node.kill()  # at once, like an eviction without notice
        agent.wait()
        assert int(newest(node)) >= before
    saved = newest(node)
    begin(node, attempt=2)
    assert node.log().split()[:2] == [b"from", saved]


# --- a store that fails


@pytest.mark.timeout(900)
@pytest.mark.parametrize("away_s", [2.5, pytest.param(600.0, marks=pytest.mark.slow)])
def test_a_store_that_is_away_for_a_while_is_caught_up_with(node: Node, away_s: float) -> None:
    agent = begin(node)
    eventually(lambda: sets(node), "the first commit")
    before = sets(node)[-1].position
    away = node.store.root.with_name("away")
    node.store.root.rename(away)
    node.store.root.write_text("not a folder")  # so that nobody creates a new store in its place
    time.sleep(away_s)
    node.store.root.unlink()
    away.rename(node.store.root)
    report = node.finish(agent)
    assert report.outcome is Outcome.SUCCEEDED
    assert sets(node)[-1].position > before
    assert newest(node) == b"400"
    assert len(node.events("checkpoint-failed")) == len(node.events("checkpoint-caught-up")) == 1


@needs_root
def test_a_full_disk_is_loud_and_training_continues_and_is_caught_up_with(tmp_path: Path, agent: Path) -> None:
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        node = Node(tmp_path, agent)
        node.store = type(node.store)(disk / "store")
        script = SCRIPT.replace("str(step))\n", "f'{step} ' + 'x' * 300_000)\n")
        running = begin(node, script=script)
        eventually(lambda: sets(node), "the first commit")
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        before = sets(node)[-1].position
        time.sleep(2.5)
        assert running.poll() is None, "training goes on"
        ballast.unlink()
        report = node.finish(running)
        assert report.outcome is Outcome.SUCCEEDED
        assert sets(node)[-1].position > before
        assert newest(node).startswith(b"400 ")
        assert node.events("checkpoint-failed")
        assert node.events("checkpoint-caught-up")
        assert node.log().split()[-1] == b"400"
    finally:
        node.kill()
        subprocess.run(["umount", "-l", str(disk)], check=True)


@needs_root
def test_a_disk_that_fills_up_while_the_library_saves_is_loud_and_training_continues(tmp_path: Path) -> None:
    """With space for two checkpoints but not for a third until the oldest is deleted; no partial one stays."""
    disk = tmp_path / "small"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    script = """
        import array, os, sys
        from pathlib import Path
        from stoker.checkpoint import Checkpoint

        class Thing:
            def __init__(self): self.numbers = array.array("d", bytes(8_000_000))
            def state_dict(self): return {"numbers": self.numbers}
            def load_state_dict(self, state): self.numbers = state["numbers"]

        thing = Thing()
        state = Checkpoint(thing=thing, every=1, keep=3, folder=sys.argv[1])
        for step in state.range(4):
            thing.numbers[step] = step
            if step == 3: Path(sys.argv[1], "ballast").unlink()
            if step == 1: Path(sys.argv[1], "ballast").write_bytes(bytes(5_000_000))
            state.step()
            state.finish()
            print(state.steps, state.trouble, flush=True)
        again = Checkpoint(thing=Thing(), every=1, keep=3, folder=sys.argv[1])
        print("again from", again.steps)
    """
    try:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        done = subprocess.run(
            [sys.executable, str(path), str(disk)], capture_output=True, text=True, timeout=60, check=True
        )
        trouble = "2 step 2 was not saved: the disk is full\n3 step 3 was not saved: the disk is full"
        assert done.stdout == f"1 None\n{trouble}\n4 None\nagain from 4\n", done.stderr
        assert "training continues, and the next save retries" in done.stderr
        assert sorted(one.name for one in disk.iterdir()) == ["step-000000001", "step-000000004"]
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)

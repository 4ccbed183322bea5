"""The real agent, packed as it is shipped, with real scripts on this machine."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from agentnode import RUN, Node, eventually

from stoker.agent.pack import pack
from stoker.model.cause import Cause
from stoker.model.orders import Orders
from stoker.model.run.report import Outcome, Phase, RankEnd
from stoker.model.snapshot import EntryKind
from stoker.model.wire import dump, load
from stoker.model.workspace import layout

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes through /proc")


# --- how scripts end


def test_a_script_that_succeeds(node: Node) -> None:
    report = node.run("python train.py", {"train.py": "print('hello')"})
    assert (report.outcome, report.exit_code, report.message) == (Outcome.SUCCEEDED, 0, "")
    assert report.ranks == (RankEnd(0, 0),)
    assert report.log_bytes == {"0": 6}
    assert report.started_at and report.ended_at and report.started_at <= report.ended_at
    assert node.log() == b"hello\n"


def test_a_script_that_fails_keeps_its_exit_code(node: Node) -> None:
    report = node.run("python train.py", {"train.py": "raise SystemExit(3)"})
    assert (report.outcome, report.exit_code, report.cause) == (Outcome.FAILED, 3, Cause.EXIT_CODE)


def test_a_script_that_is_killed(node: Node) -> None:
    report = node.run("python train.py", {"train.py": "import os; os.kill(os.getpid(), 9)"})
    assert (report.outcome, report.exit_code, report.cause) == (Outcome.FAILED, 137, Cause.SIGNAL)
    assert "SIGKILL" in report.message
    assert report.ranks == (RankEnd(0, None, 9),)


def test_a_script_that_is_killed_behind_a_shell(node: Node) -> None:
    report = node.run("python train.py; exit $?", {"train.py": "import os; os.kill(os.getpid(), 11)"})
    assert (report.exit_code, report.cause) == (139, Cause.SIGNAL) and "SIGSEGV" in report.message


def test_a_command_that_does_not_exist_is_named(node: Node) -> None:
    report = node.run("pythn train.py")
    assert (report.outcome, report.exit_code, report.cause) == (Outcome.FAILED, 127, Cause.COMMAND_MISSING)
    assert "`pythn`" in report.hint


def test_a_script_that_does_not_exist_says_so_itself(node: Node) -> None:
    report = node.run("python nowhere.py")
    assert (report.exit_code, report.cause) == (2, Cause.EXIT_CODE)
    assert b"nowhere.py" in node.log()


def test_a_missing_interpreter_breaks_the_run(node: Node) -> None:
    report = node.run("python train.py", python="/nowhere/python")
    assert report.outcome is Outcome.BROKEN
    assert "/nowhere/python" in report.message
    assert report.hint


def test_a_missing_snapshot_breaks_the_run(node: Node) -> None:
    node.order("true", {"a.py": "1"})
    for stored in list(node.store.list("blobs/")):
        node.store.delete(stored.key)
    report = node.finish(node.start())
    assert report.outcome is Outcome.BROKEN
    assert "a.py" in report.message


# --- what is printed


def test_output_arrives_byte_for_byte_in_order(node: Node) -> None:
    script = """
        import os
        for i in range(2000):
            os.write(1 + i % 2, b"%d \\xff\\x00\\r\\n" % i)
        os.write(1, b"x" * 1_000_000)
        os.write(2, b"no newline at the end")
    """
    report = node.run("python train.py", {"train.py": script})
    expected = b"".join(b"%d \xff\x00\r\n" % i for i in range(2000)) + b"x" * 1_000_000 + b"no newline at the end"
    assert node.log() == expected
    assert report.log_bytes == {"0": len(expected)}


def test_reopening_the_standard_files_keeps_what_was_printed(node: Node) -> None:
    node.run("echo one; echo two > /dev/stderr; echo three | tee /dev/stderr; echo four > /dev/stdout; echo five")
    assert node.log() == b"one\ntwo\nthree\nthree\nfour\nfive\n"


def test_a_script_that_closes_its_output_runs_on(node: Node) -> None:
    script = """
        import os, time
        print("before", flush=True)
        os.close(1); os.close(2)
        time.sleep(0.3)
        open("outputs/after", "w").write("done")
    """
    assert node.run("python train.py", {"train.py": script}).outcome is Outcome.SUCCEEDED
    assert node.log() == b"before\n"
    assert node.outputs() == {"after": b"done"}


def test_lines_can_be_followed_while_the_script_runs(node: Node) -> None:
    node.order("echo begun; sleep 30")
    agent = node.start()
    node.prints(b"begun\n")
    deadline = time.monotonic() + 10  # the report is written by another thread than the log
    while node.report().phase is not Phase.RUNNING:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    node.cancel()
    node.finish(agent)


def test_times_of_the_log_say_how_old_its_lines_are(node: Node) -> None:
    before = time.time()
    node.run("echo a; sleep 0.5; echo b")
    times = node.lines(layout.log_times("r1", 1, 0))
    assert times[0][0] == 0
    assert times[-1][0] == 2
    assert before <= times[0][1] < times[-1][1] <= time.time()


def test_large_output_is_shipped_whole(node: Node) -> None:
    script = "import os\nblock = b'a line of output\\n' * 4096\nfor _ in range(600): os.write(1, block)"
    report = node.run("python train.py", {"train.py": script})
    assert report.log_bytes == {"0": 17 * 4096 * 600}


# --- secrets


def test_secrets_reach_the_script_and_nothing_else(node: Node) -> None:
    secret = "s3cret-" + os.urandom(8).hex()
    script = """
        import json, os, sys, time
        token = os.environ["HF_TOKEN"]
        sys.stdout.write("token " + token[:9]); sys.stdout.flush()
        time.sleep(0.3)
        print(token[9:])
        print(json.dumps({token: 1.0}), flush=True)
        time.sleep(0.5)
        sys.exit("failed with " + token)
    """
    node.order("python train.py", {"train.py": script}, secrets=["HF_TOKEN"])
    agent = node.start(HF_TOKEN=secret)
    eventually(lambda: b"*" in node.log(), "the masked token")
    assert secret not in subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout
    report = node.finish(agent)
    assert report.exit_code == 1
    stars = b"*" * len(secret)
    assert node.log() == b"token " + stars + b'\n{"' + stars + b'": 1.0}\nfailed with ' + stars + b"\n"
    found = subprocess.run(["grep", "-r", secret, node.root], capture_output=True, text=True).stdout
    assert found == ""


def test_variables_that_were_not_asked_for_stay_outside(node: Node) -> None:
    node.order("env; ls -l /proc/self/fd | grep -c lock; true")
    node.finish(node.start(AWS_SECRET_ACCESS_KEY="do-not-take"))
    assert b"do-not-take" not in node.log()
    assert node.log().endswith(b"\n0\n")


# --- processes


@needs_proc
def test_what_a_script_leaves_behind_is_ended(node: Node) -> None:
    report = node.run("(setsid sleep 300 >/dev/null 2>&1 &); (sleep 300 &); echo done")
    assert (report.outcome, node.log()) == (Outcome.SUCCEEDED, b"done\n")
    [told] = node.events("left-behind")
    assert re.findall(r"\d+", told) == ["2"]


def test_what_ends_by_itself_soon_after_the_script_is_waited_for(node: Node) -> None:
    report = node.run("(sleep 0.3; echo late) & echo done")
    assert (report.outcome, node.log()) == (Outcome.SUCCEEDED, b"done\nlate\n")
    assert node.events("left-behind") == []


@needs_proc
def test_a_cancelled_run_ends_even_if_it_ignores_being_asked(node: Node) -> None:
    script = """
        import os, signal, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "300"], start_new_session=True, env={})
        open("outputs/kept", "w").write("kept")
        print("ready", flush=True)
        while True: time.sleep(1)
    """
    node.order("python train.py", {"train.py": script})
    agent = node.start()
    node.prints(b"ready")
    sleeper = int(subprocess.run(["pgrep", "-n", "-x", "sleep"], capture_output=True, text=True).stdout)
    start = time.monotonic()
    node.cancel("cancelled by mira")
    report = node.finish(agent)
    assert 9 < time.monotonic() - start < 16
    assert (report.outcome, report.message, report.exit_code) == (Outcome.CANCELLED, "cancelled by mira", 137)
    assert node.outputs() == {"kept": b"kept"}
    assert not Path(f"/proc/{sleeper}").exists()


def test_a_script_that_ends_well_when_cancelled_saves_first(node: Node) -> None:
    script = """
        import signal, sys, time
        def save(*_):
            open("outputs/model", "w").write("saved")
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(60)
    """
    node.order("python train.py", {"train.py": script})
    agent = node.start()
    node.prints(b"ready")
    node.cancel()
    report = node.finish(agent)
    assert (report.outcome, report.exit_code) == (Outcome.CANCELLED, 0)
    assert (node.log(), node.outputs()) == (b"ready\nsaved\n", {"model": b"saved"})


def test_a_script_behind_a_shell_has_all_its_grace_too(node: Node) -> None:
    script = """
        import signal, sys, time
        def save(*_):
            time.sleep(3)
            print("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        print("ready", flush=True)
        time.sleep(60)
    """
    node.order("python train.py; exit $?", {"train.py": script})
    agent = node.start()
    node.prints(b"ready")
    node.cancel()
    node.finish(agent)
    assert node.log() == b"ready\nsaved\n"


def test_terminating_the_agent_cancels_the_attempt(node: Node) -> None:
    node.order("echo ready; sleep 60")
    agent = node.start()
    node.prints(b"ready")
    agent.terminate()
    assert node.finish(agent).outcome is Outcome.CANCELLED


def test_a_wish_from_before_the_start_is_heeded(node: Node) -> None:
    node.order("sleep 60")
    node.cancel()
    assert node.finish(node.start()).outcome is Outcome.CANCELLED


def test_a_time_limit_ends_the_script(node: Node) -> None:
    report = node.run("echo begun; sleep 60", time_limit=1)
    assert (report.outcome, report.cause) == (Outcome.TIMED_OUT, Outcome.TIMED_OUT)
    assert "1s" in report.message
    assert node.log() == b"begun\n"


def test_when_one_rank_fails_the_others_are_ended(node: Node) -> None:
    script = """
        import os, sys, time
        print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
        time.sleep(0.2)
        if os.environ["RANK"] == "1": sys.exit(5)
        time.sleep(60)
    """
    report = node.run("python train.py", {"train.py": script}, processes=3)
    assert (report.outcome, report.exit_code, report.cause) == (Outcome.FAILED, 5, Cause.EXIT_CODE)
    assert report.ranks == (RankEnd(0, None, 15), RankEnd(1, 5), RankEnd(2, None, 15))
    assert [node.log(rank) for rank in range(3)] == [b"rank %d of 3\n" % rank for rank in range(3)]
    assert set(report.log_bytes) == {"0", "1", "2"}


def test_processes_per_gpu_without_a_gpu_is_one_process(node: Node) -> None:
    node.run("echo alone$WORLD_SIZE", processes="gpus", env={"CUDA_VISIBLE_DEVICES": ""})
    assert node.log() == b"alone\n"
    assert node.events("gpus")


# --- starting twice, dying, being cleaned up after


def test_starting_an_attempt_many_times_runs_it_once(node: Node) -> None:
    node.order("echo once; sleep 0.5")
    agents = [node.start() for _ in range(4)]
    assert [agent.wait(30) for agent in agents] == [0, 0, 0, 0]
    assert node.start().wait(30) == 0
    assert node.log() == b"once\n"
    assert node.report().outcome is Outcome.SUCCEEDED


def test_an_attempt_that_another_machine_has_begun_is_not_touched(node: Node, tmp_path: Path, agent: Path) -> None:
    node.order("echo once; sleep 0.5")
    first = node.start()
    node.reaches(Phase.RUNNING)
    node.folder = tmp_path / "another"
    assert node.start().wait(30) == 0
    assert first.wait(30) == 0
    assert node.log() == b"once\n"


def test_a_lock_that_was_inherited_is_held_and_not_passed_on(node: Node) -> None:
    node.order("ls -l /proc/self/fd | grep -c node/lock; sleep 30" if Path("/proc").exists() else "echo 0; sleep 30")
    node.folder.mkdir()
    with (node.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        paths = [
            "--folder",
            str(node.folder),
            "--environments",
            str(node.environments),
            "--lock-fd",
            str(lock.fileno()),
        ]
        orders = ["--store", node.store.url, "--orders", layout.orders("r1", 1)]
        command = [sys.executable, "-I", "-S", str(node.agent), "run", *orders, *paths]
        agent = subprocess.Popen(command, pass_fds=[lock.fileno()])
    node.prints(b"0\n")
    with (node.folder / "lock").open("w") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    node.cancel()
    node.finish(agent)
    with (node.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@needs_proc
def test_after_the_agent_was_killed_nothing_is_left_and_no_line_is_lost(node: Node) -> None:
    node.order("echo ready; (setsid sleep 300 &); sleep 300 & sleep 0.3; echo last words; sleep 300")
    agent = node.start()
    node.prints(b"ready")
    agent.kill()
    agent.wait()
    assert node.processes()
    time.sleep(0.6)
    assert node.end() == 0
    assert node.processes() == []
    assert not (node.folder / "work").exists()
    assert node.log().startswith(b"ready\nlast words\n")  # the shell may still say that something was killed
    assert node.end() == 0
    assert node.start().wait(30) == 0, "an attempt that died is not begun again"
    assert node.report().outcome is None


def test_a_store_that_is_out_of_reach_for_a_while_loses_nothing(node: Node) -> None:
    script = """
        import json, time
        for step in range(20):
            print(json.dumps({"step": step, "loss": 1 / (step + 1)}), flush=True)
            time.sleep(0.1)
        open("outputs/model", "w").write("done")
    """
    node.order("python train.py", {"train.py": script})
    agent = node.start()
    node.prints(b'"step": 3')
    place, away = node.root / "store", node.root / "away"
    place.rename(away)
    place.touch()  # in the place of the folder, so that it cannot be created again
    time.sleep(2.5)
    place.unlink()
    away.rename(place)
    report = node.finish(agent)
    assert report.outcome is Outcome.SUCCEEDED
    assert report.cause == Cause.STORE_AWAY
    steps = [json.loads(line)["step"] for line in node.log().splitlines()]
    assert steps == [point["step"] for point in node.points()] == list(range(20))
    assert node.outputs() == {"model": b"done"}


def test_a_bug_in_the_agent_ends_the_run_with_a_report(node: Node) -> None:
    node.order("true", {"a.py": "1"})
    key = layout.orders(RUN, 1)
    orders = replace(load(Orders, node.store.get(key)), data={"x": "a\0b"})  # impossible in an environment
    node.store.put(key, dump(orders))
    assert node.start().wait(30) == 0
    report = node.report()
    assert report.outcome is Outcome.BROKEN
    assert report.cause == Cause.AGENT_FAILED and "ValueError" in report.message
    assert "Traceback" in (node.folder / "agent.log").read_text()


# --- outputs


def test_outputs_are_mirrored_with_their_shape(node: Node) -> None:
    script = """
        import os
        from pathlib import Path
        out = Path(os.environ["STOKER_OUTPUTS"])
        (out / "deep" / "er").mkdir(parents=True)
        (out / "deep" / "er" / "model.bin").write_bytes(bytes(range(256)))
        (out / "large").write_bytes(b"x" * 9_000_000)
        (out / "tool.sh").write_text("#!/bin/sh")
        (out / "tool.sh").chmod(0o755)
        (out / "empty").mkdir()
        (out / "nothing").touch()
        (out / "link").symlink_to("/etc/hostname")
        (out / "same").write_bytes(bytes(range(256)))
        os.mkfifo(out / "pipe")
    """
    report = node.run("python train.py", {"train.py": script})
    found = node.manifest()
    assert node.outputs() == {
        "deep/er/model.bin": bytes(range(256)),
        "large": b"x" * 9_000_000,
        "tool.sh": b"#!/bin/sh",
        "nothing": b"",
        "same": bytes(range(256)),
    }
    assert found["tool.sh"].executable and not found["large"].executable
    assert (found["link"].kind, found["link"].target) == (EntryKind.LINK, "/etc/hostname")
    assert found["empty"].kind is EntryKind.FOLDER
    assert "pipe" not in found
    assert (report.output_files, report.output_bytes) == (5, 9_000_000 + 512 + 9)


def test_outputs_appear_while_the_script_runs(node: Node) -> None:
    node.order("echo one > outputs/a; sleep 60")
    agent = node.start()
    eventually(lambda: node.outputs() == {"a": b"one\n"}, "the first output")
    assert node.report().outcome is None
    node.cancel()
    node.finish(agent)


def test_what_was_overwritten_does_not_pile_up(node: Node) -> None:
    node.order("for i in 1 2; do head -c 100000 /dev/urandom > outputs/model; sleep 2.6; done")
    agent = node.start()
    eventually(lambda: len(list(node.store.list("runs/r1/outputs"))) == 2, "both contents")
    node.finish(agent)
    assert len(list(node.store.list("runs/r1/outputs"))) == 1
    assert len(node.outputs()["model"]) == 100_000


def test_files_that_cannot_be_downloaded_do_not_fail_the_run(node: Node) -> None:
    script = r"""
        import os
        open(b"outputs/bad-\xff", "w").close()
        os.symlink(b"bad-\xff", "outputs/link")
        open("outputs/good", "w").close()
    """
    report = node.run("python train.py", {"train.py": script})
    assert report.outcome is Outcome.SUCCEEDED
    assert node.outputs() == {"good": b""}
    assert len(node.events("output-unreadable")) == 2


MANY = """
    import os
    for i in range(COUNT):
        if i % 1000 == 0: os.mkdir(f"outputs/{i // 1000}")
        open(f"outputs/{i // 1000}/{i}", "w").write(str(i))
"""


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_many_small_outputs_are_mirrored_while_the_heart_beats(node: Node, count: int) -> None:
    node.order("python train.py", {"train.py": MANY.replace("COUNT", str(count))})
    agent = node.start()
    beats: list[tuple[float, int]] = []
    while agent.poll() is None:
        time.sleep(0.1)
        if node._has_report() and (not beats or node.report().beat != beats[-1][1]):
            beats.append((time.monotonic(), node.report().beat))
    report = node.finish(agent)
    assert (report.output_files, len(node.manifest())) == (count, count)
    assert max(later - earlier for (earlier, _), (later, _) in pairwise(beats)) < 6


# --- metrics and targets


def test_metrics_are_gathered_from_everywhere(node: Node) -> None:
    script = """
        import json, stoker
        print("epoch 1")
        print(json.dumps({"epoch": 1, "loss": 0.5, "val": {"acc": 0.75}}))
        stoker.log(step=2, loss=0.25, lr=0.1)
        print('{"not": "a number"}')
        print('{"epoch": 3, "loss": NaN, "acc": 1}', end="")
    """
    report = node.run("python train.py", {"train.py": script})
    points = [(point["step"], point["rank"], point["values"]) for point in node.points()]
    assert sorted(points, key=str) == [
        (1, 0, {"loss": 0.5, "val/acc": 0.75}),
        (2, 0, {"loss": 0.25, "lr": 0.1}),
        (3, 0, {"loss": None, "acc": 1.0}),
    ]
    loss = report.metrics["loss"]
    assert (loss.least, loss.most, loss.count) == (0.25, 0.5, 2)


EPOCHS = """
    import json, signal, sys, time
    from pathlib import Path
    for epoch in range(100):
        time.sleep(0.2)
        print(json.dumps({"epoch": epoch, "acc": epoch / 10}), flush=True)
        time.sleep(0.3)
        Path("outputs/model").write_text(str(epoch))
"""


def test_a_script_is_stopped_once_it_has_saved_what_reached_the_target(node: Node) -> None:
    report = node.run("python train.py", {"train.py": EPOCHS}, stop_when="acc >= 0.2")
    assert (report.outcome, report.exit_code) == (Outcome.TARGET_REACHED, 0)
    assert "acc 0.2" in report.message
    assert node.outputs() == {"model": b"2"}
    assert node.events("target-reached") == [report.message]


def test_a_script_that_catches_the_signal_ends_as_it_likes(node: Node) -> None:
    script = EPOCHS.replace("for epoch", "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n    for epoch")
    report = node.run("python train.py; exit $?", {"train.py": script}, stop_when="acc >= 0.1")
    assert (report.outcome, report.exit_code) == (Outcome.TARGET_REACHED, 0)
    assert node.log().endswith(b"saved\n")


def test_a_script_that_asks_whether_to_stop_ends_by_itself(node: Node) -> None:
    script = """
        import stoker, time
        step = 0
        while not stoker.should_stop():
            step += 1
            stoker.log(step=step, loss=1 / step)
            if step < 5: time.sleep(0.05)
            else: time.sleep(0.2)
        print("stopped")
    """
    report = node.run("python train.py", {"train.py": script}, stop_when="loss < 0.3")
    assert report.outcome is Outcome.TARGET_REACHED


def test_a_target_reached_with_the_last_words_counts(node: Node) -> None:
    report = node.run("""echo '{"acc": 1}'""", stop_when="acc > 0.9")
    assert (report.outcome, report.exit_code) == (Outcome.TARGET_REACHED, 0)


def test_a_script_that_fails_after_the_target_has_failed(node: Node) -> None:
    report = node.run("""echo '{"acc": 1}'; exit 4""", stop_when="acc > 0.9")
    assert (report.outcome, report.exit_code) == (Outcome.FAILED, 4)


# --- environments


def test_an_environment_is_built_once_by_two_agents_at_once(tmp_path: Path, agent: Path) -> None:
    nodes = [Node(tmp_path / name, agent) for name in ("one", "two")]
    package = {
        "setup.py": "from setuptools import setup; setup()",
        "requirements.txt": "-r more.txt\n",
        "more.txt": "six==1.17.0\n",
    }
    for node in nodes:
        node.environments = tmp_path / "environments"
        node.order(
            "python -c 'import six, sys; print(six.__version__, sys.prefix)'", package, environment="requirements.txt"
        )
    agents = [node.start("--uv", str(Path(sys.executable).with_name("uv"))) for node in nodes]
    reports = [node.finish(agent) for node, agent in zip(nodes, agents, strict=True)]
    assert [report.outcome for report in reports] == [Outcome.SUCCEEDED, Outcome.SUCCEEDED]
    last = {node.log().splitlines()[-1] for node in nodes}
    assert len(last) == 1 and last.pop().startswith(b"1.17.0 " + str(tmp_path / "environments").encode())
    told = " ".join(text for node in nodes for text in node.events("environment"))
    assert told.count("was installed in") == 1
    assert told.count("from an earlier run") == 1


@pytest.mark.heavy
def test_a_half_built_environment_is_built_again(tmp_path: Path, agent: Path) -> None:
    for name in ("one", "two"):
        node = Node(tmp_path / name, agent)
        node.environments = tmp_path / "environments"
        report = node.run(
            "python -c 'import sys; print(sys.prefix)'",
            {"requirements.txt": "# nothing\n"},
            environment="requirements.txt",
        )
        assert report.outcome is Outcome.SUCCEEDED
        venv = Path(node.log().splitlines()[-1].decode())
        (venv / ".stoker-complete").unlink()
        assert "was installed" in node.events("environment")[-1]


def test_a_requirement_that_is_unavailable_breaks_the_run_and_says_why(node: Node) -> None:
    report = node.run("python -c 1", {"requirements.txt": "six==99.99\n"}, environment="requirements.txt")
    assert report.outcome is Outcome.BROKEN
    assert "`requirements.txt`" in report.message
    assert "six==99.99" in report.message
    assert b"six==99.99" in node.log()


def test_a_missing_requirements_file_breaks_the_run(node: Node) -> None:
    report = node.run("true", environment="requirements.txt")
    assert (report.outcome, report.cause) == (Outcome.BROKEN, Cause.ENVIRONMENT_MISSING)


def test_a_python_that_is_not_there_is_reported_with_those_that_are(node: Node) -> None:
    report = node.run("true", environment={"python": "3.1"})
    here = ".".join(map(str, sys.version_info[:3]))
    assert report.outcome is Outcome.BROKEN
    assert report.cause == Cause.PYTHON_MISSING and "3.1" in report.message
    assert here in report.message


def test_a_python_by_version_is_found(node: Node) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    node.run("python -c 'import sys; print(sys.version_info[:2])'", environment={"python": version})
    assert node.log() == f"{sys.version_info[:2]}\n".encode()


# --- the packed agent


def test_scripts_of_another_python_can_import_the_packed_stoker(agent: Path) -> None:
    other = "import json, sys, zipimport; sys.path.insert(0, sys.argv[1]); import stoker; stoker.log(loss=1.0)"
    for python in {sys.executable, "python3.12", "python3.13"}:
        ran = subprocess.run([python, "-I", "-c", other, str(agent)], capture_output=True, text=True)
        if ran.returncode == 127 or "not found" in ran.stderr:
            continue
        assert json.loads(ran.stdout) == {"loss": 1.0}, ran.stderr


def test_packing_again_changes_nothing(tmp_path: Path) -> None:
    first = pack(tmp_path)
    before = first.stat().st_mtime_ns
    assert pack(tmp_path) == first
    assert first.stat().st_mtime_ns == before
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


def test_code_that_somebody_put_in_the_place_of_the_submitted_never_runs(node: Node) -> None:
    node.order("python train.py", {"train.py": "print('injected')"})
    injected = next(one.key for one in node.store.list("snapshots"))
    other = node.store.get(injected)
    node.order("python train.py", {"train.py": "print('submitted')"})
    submitted = next(one.key for one in node.store.list("snapshots") if one.key != injected)
    node.store.put(submitted, other)
    report = node.finish(node.start())
    assert report.outcome is Outcome.BROKEN
    assert report.cause == Cause.CODE_DIFFERS
    assert node.log() == b""

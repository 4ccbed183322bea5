"""The command line as people meet it: real processes, a real server, and a terminal where it matters."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.model.cause import Cause

STOKER = [sys.executable, "-m", "stoker.cli"]
PATIENCE_S = 30.0

SCRIPT = """
    import os, pathlib, sys, time
    print("hello from", os.environ["STOKER_RUN"], flush=True)
    sys.stdout.write("\\r 50%\\r100%\\n")
    pathlib.Path("outputs/model.txt").write_text("weights")
    time.sleep(float(os.environ.get("SLEEP", "0")))
    if os.environ.get("KILL"):
        os.kill(os.getpid(), int(os.environ["KILL"]))
    sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One home and one server for the whole file: starting a server for each test would take most of the time."""
    root = tmp_path_factory.mktemp("desk")
    folder = root / "project"
    folder.mkdir()
    keep = {name: os.environ[name] for name in os.environ if not name.startswith(("STOKER_", "PYTHON"))}
    environ = {**keep, "STOKER_HOME": str(root / "home"), "STOKER_SLOTS": "4", "TERM": "xterm-256color"}
    shell = Shell(root / "home", folder, environ)
    shell.write("train.py", SCRIPT)
    shell.job("python train.py")
    yield shell
    shell.stoker("server", "stop", code=None)


class Screen:
    """A terminal with one command in it."""

    def __init__(self, desk: Shell, *args: str) -> None:
        self._end, inside = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen(
            [*STOKER, *args], cwd=desk.folder, env=desk.environ, stdin=inside, stdout=inside, stderr=inside
        )
        os.close(inside)

    @classmethod
    def after(cls, desk: Shell, *args: str) -> Screen:
        """The command succeeded."""
        screen = cls(desk, *args)
        assert screen.code() == 0, screen.text
        return screen

    def until(self, pattern: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"waited for {pattern!r}, saw {self.text!r}"
            self._read(0.1)
        return self.text

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def code(self) -> int:
        """The exit code, with everything that was still to be read."""
        while self.process.poll() is None:
            self._read(0.05)
        while self._read(0.05):
            pass
        os.close(self._end)
        return self.process.returncode

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._end], [], [], timeout_s)[0]:
            return False
        with suppress(OSError):  # the other side is closed
            data = os.read(self._end, 65536)
            self.text += data.decode(errors="replace")
            return bool(data)
        return False


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def printed(desk: Shell, *args: str) -> bytes:
    """Stdout byte by byte: text streams would turn a carriage return into a newline."""
    with desk.start(*args, text=False, stderr=subprocess.DEVNULL) as process:
        out: bytes = process.communicate(timeout=PATIENCE_S)[0]  # type: ignore[assignment]
    return out


def new_run(desk: Shell, *args: str) -> str:
    return desk.stoker("run", "-d", *args).stdout.strip()


def test_a_run_prints_what_the_script_prints_and_brings_its_outputs_back(desk: Shell) -> None:
    done = desk.stoker("run", "--name", "first")
    assert done.stdout.startswith("hello from first\n")
    said = [line for line in done.stderr.splitlines() if not line.endswith("…") and not line.startswith("starting:")]
    header, _closed, ending, hint = said
    assert re.fullmatch(r"first on local, code [0-9a-f]{8} \(.*\)", header)
    assert re.fullmatch(r"first succeeded in .*; outputs in outputs/first \(1 file, 7 B\)", ending)
    assert hint == "next: stoker show first"
    assert (desk.folder / "outputs/first/model.txt").read_text() == "weights"


@pytest.mark.parametrize(("variable", "code"), [("CODE=3", 3), ("CODE=255", 255), ("KILL=9", 137), ("KILL=15", 143)])
def test_the_exit_code_is_the_scripts(desk: Shell, variable: str, code: int) -> None:
    done = desk.stoker("run", "--set", f"env.{variable}", code=code)
    assert "failed" in done.stderr
    assert f"{code}" in done.stderr


def test_json_tells_of_every_step(desk: Shell) -> None:
    done = desk.stoker("run", "--json", "--set", "env.CODE=4", code=4)
    first, *logs, last = events(done.stdout)
    assert first["event"] == "submitted"
    assert first["run"]["state"] in ("queued", "starting", "running")
    assert {one["event"] for one in logs} == {"log"}
    assert "".join(one["text"] for one in logs).endswith("\r 50%\r100%\n")
    assert (last["event"], last["run"]["state"], last["run"]["exit_code"]) == ("ended", "failed", 4)
    assert done.stderr == ""


def test_every_command_has_its_shape_in_json(desk: Shell) -> None:
    name = desk.ended(new_run(desk))["name"]

    def told(*args: str, code: int = 0) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(desk.stoker(*args, "--json", code=code).stdout)
        return answer

    assert name in [run["name"] for run in told("ps")["runs"]]
    shown = told("show", name)
    assert [entry["path"] for entry in shown["outputs"]] == ["model.txt"]
    assert shown["run"]["name"] == name
    assert shown["events"][0]["kind"] == "submitted"
    assert told("show", name, "--plot")["points"] == []
    assert told("plan")["plan"]["command"] == "python train.py"
    assert told("diff", name, name)["same"] is True
    assert Path(told("fetch", name)["folder"]).is_dir()
    assert told("doctor")["ok"] is True
    assert told("server", "status")["up"] is True
    assert told("schema")["title"] == "stoker.yaml"
    assert told("completion", "bash")["shell"] == "bash"
    assert told("cancel", name, code=2)["error"]["code"] == "conflict"
    assert told("show", "nothing-like-it", code=2)["error"]["code"] == "not-found"
    assert told("rm", name, code=2)["error"]["code"] == "bad-input"
    assert told("rm", name, "--yes")["removed"] == [name]
    assert told("rm", name, "--yes", code=2)["error"]["code"] == "not-found"


def test_a_mistake_in_the_job_file_is_shown_where_it_is(desk: Shell) -> None:
    desk.write("wrong.yaml", "name: ants\nrun: python train.py\nnodez: 2\nretries: many\n")
    done = desk.stoker("run", "wrong.yaml", code=2)
    lines = done.stderr.splitlines()
    assert lines[0] == "error: wrong.yaml has 2 problems"
    assert lines[1].startswith("  wrong.yaml:3:1: nodez: found an unknown key")
    assert lines[1].endswith("(did you mean `nodes`?)")
    assert lines[2].startswith("  wrong.yaml:4:10: retries: found `many`")
    (problem, _) = json.loads(desk.stoker("plan", "wrong.yaml", "--json", code=2).stdout)["error"]["problems"]
    assert (problem["field"], problem["line"], problem["column"]) == ("nodez", 3, 1)


def test_what_only_the_server_knows_to_be_wrong_is_shown_in_the_file_too(desk: Shell) -> None:
    desk.write("nowhere.yaml", "name: ants\nrun: python train.py\non: nowhere\n")
    [problem] = desk.refused("run", "nowhere.yaml")["problems"]
    assert (problem["field"], problem["found"], problem["line"], problem["column"]) == ("on", "`nowhere`", 3, 5)
    [problem] = desk.refused("run", "--on", "nowhere")["problems"]
    assert (problem["field"], problem["line"]) == ("--set on", 0)


def test_an_unknown_run_is_answered_with_the_nearest(desk: Shell) -> None:
    new_run(desk, "--name", "nearly-right")
    done = desk.refused("logs", "nearly-rihgt")
    assert (done["code"], done["cause"]) == ("not-found", Cause.NO_SUCH_RUN) and "`nearly-right`" in done["hint"]


def test_ranks_come_interleaved_by_whole_lines(desk: Shell) -> None:
    desk.write("ranks.py", "import os\nfor n in range(50): print('line', n, 'of', os.environ['RANK'], flush=True)")
    desk.job("python ranks.py")
    try:
        done = desk.stoker("run", "--set", "processes=3", "--name", "ranked")
    finally:
        desk.job("python train.py")
    lines = done.stdout.splitlines()
    for rank in range(3):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] line {n} of {rank}" for n in range(50)]
    assert len(lines) == 150
    assert desk.stoker("logs", "ranked", "--rank", "1").stdout.startswith("line 0 of 1\n")
    assert desk.stoker("logs", "ranked", "--rank", "1", "--tail", "2").stdout == "line 48 of 1\nline 49 of 1\n"
    assert desk.stoker("logs", "ranked", "--tail", "1").stdout == "".join(f"[{n}] line 49 of {n}\n" for n in range(3))
    assert desk.refused("logs", "ranked", "--rank", "7")["cause"] == Cause.NO_SUCH_RANK
    assert desk.refused("logs", "ranked", "--raw")["cause"] == Cause.ONE_RANK_ONLY


def test_further_attempts_are_announced(desk: Shell) -> None:
    done = desk.stoker("run", "--set", "retries=1", "--set", "env.CODE=5", "--name", "twice", code=5)
    assert done.stdout.count("hello from twice\n") == 2
    assert "attempt 2 starts" in done.stderr
    one = "hello from twice\n100%\n"
    whole = desk.stoker("logs", "twice")
    assert whole.stdout == 2 * one
    assert whole.stderr in done.stderr and len(whole.stderr.splitlines()) == 1
    assert [one["cause"] for one in desk.facts("twice")["attempts"]] == [Cause.EXIT_CODE, Cause.EXIT_CODE]
    assert desk.stoker("logs", "twice", "-f").stdout == 2 * one
    assert desk.stoker("logs", "twice", "--tail", "1").stdout == "100%\n"
    assert printed(desk, "logs", "twice", "--attempt", "1") == one.encode()
    assert desk.refused("logs", "twice", "--attempt", "3")["cause"] == Cause.NO_SUCH_ATTEMPT


def test_a_run_keeps_every_byte_where_nobody_looks(desk: Shell) -> None:
    assert printed(desk, "run", "--name", "exact") == b"hello from exact\n\r 50%\r100%\n"


def test_logs_fold_progress_bars_unless_raw(desk: Shell) -> None:
    desk.ended(new_run(desk, "--name", "bars"))
    folded = b"hello from bars\n100%\n"
    assert printed(desk, "logs", "bars") == folded
    assert printed(desk, "logs", "bars", "-f") == folded
    assert printed(desk, "logs", "bars", "--raw") == b"hello from bars\n\r 50%\r100%\n"
    assert printed(desk, "logs", "bars", "--since", "1h") == folded
    assert printed(desk, "logs", "bars", "--tail", "1") == b"100%\n"
    assert desk.refused("logs", "bars", "--since", "soon")["cause"] == Cause.VALUE_INVALID


def test_a_reader_that_goes_away_is_no_reason_to_complain(desk: Shell) -> None:
    desk.write("long.py", "for n in range(200_000): print('line', n)")
    desk.job("python long.py")
    try:
        for command in ("run --name long", "logs long", "ps", "logs -f long"):
            piped = f"{sys.executable} -m stoker.cli {command} | head -n 1"
            done = subprocess.run(
                piped, shell=True, cwd=desk.folder, env=desk.environ, capture_output=True, text=True, timeout=PATIENCE_S
            )
            assert len(done.stdout.splitlines()) == 1
            assert "Traceback" not in done.stderr
            assert "rror" not in done.stderr
            desk.ended("long")
    finally:
        desk.job("python train.py")


def test_ctrl_c_leaves_the_run_alone(desk: Shell) -> None:
    screen = Screen(desk, "run", "--set", "env.SLEEP=30", "--name", "left-alone")
    screen.until("hello from left-alone")
    screen.interrupt()
    screen.until("press Ctrl-C again within 3 s")
    assert screen.code() == 130
    assert "detached: left-alone continues" in screen.text
    assert "stoker logs -f left-alone" in screen.text
    assert "stoker cancel left-alone" in screen.text
    assert desk.facts("left-alone")["state"] == "running"
    assert "was cancelled" in desk.stoker("cancel", "left-alone").stderr
    assert desk.facts("left-alone")["state"] == "cancelled"


def test_a_second_ctrl_c_offers_to_cancel(desk: Shell) -> None:
    screen = Screen(desk, "run", "--set", "env.SLEEP=30", "--name", "cancelled-by-hand")
    screen.until("hello from cancelled-by-hand")
    screen.interrupt()
    screen.until("press Ctrl-C again within 3 s")
    screen.interrupt()
    screen.until(r"cancel cancelled-by-hand\? \[y/N\]")
    screen.type("y\n")
    assert screen.code() == 130
    assert desk.ended("cancelled-by-hand")["state"] == "cancelled"


def test_ctrl_c_without_a_terminal_just_detaches(desk: Shell) -> None:
    process = desk.start("run", "--set", "env.SLEEP=30", "--name", "unwatched")
    assert process.stdout is not None
    assert process.stdout.readline() == "hello from unwatched\n"
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - started < 2.5
    assert process.returncode == 130
    assert "detached: unwatched continues" in err
    assert "second" not in err
    desk.stoker("cancel", "unwatched", "--yes")


def test_a_cancelled_run_ends_its_watcher_with_130(desk: Shell) -> None:
    process = desk.start("run", "--set", "env.SLEEP=30", "--name", "ended-early")
    assert process.stdout is not None
    process.stdout.readline()
    desk.stoker("cancel", "ended-early")
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "ended-early was cancelled" in err


def test_a_run_that_waits_says_why(desk: Shell) -> None:
    names = [new_run(desk, "--set", "env.SLEEP=31") for _ in range(4)]
    process = desk.start("run")
    assert process.stderr is not None
    said = iter(process.stderr.readline, "")
    assert next(line for line in said if "waiting" in line) == "waiting: 4 of 4 slots are busy, 0 ahead\n"
    queue = desk.stoker("queue")
    assert "a node: 0 of 4 are free" in queue.stdout and "unknown" in queue.stdout
    assert "no `time_limit` is set" in queue.stderr
    desk.stoker("cancel", *names)
    assert process.wait(PATIENCE_S) == 0
    process.communicate()


def test_on_a_terminal_bars_move_and_nothing_can_act(desk: Shell) -> None:
    desk.write("loud.py", r"print('\x1b[31mred\x1b[0m \x1b[2Jgone\x1b]0;title\x07'); print('\r1%\r2%')")
    desk.job("python loud.py")
    try:
        screen = Screen.after(desk, "run", "--name", "loud")
    finally:
        desk.job("python train.py")
    assert "\x1b[31mred\x1b[0m gone␛]0;title\r\n" in screen.text
    assert "\r1%\r2%\r\n" in screen.text
    assert "\x1b[32mloud succeeded" in screen.text
    assert Screen.after(desk, "logs", "loud").text.endswith("title\r\n2%\r\n")


def test_colour_is_left_out_where_it_is_not_wanted(desk: Shell) -> None:
    desk.environ["NO_COLOR"] = "1"
    try:
        screen = Screen.after(desk, "ps", "--state", "succeeded")
    finally:
        del desk.environ["NO_COLOR"]
    assert "succeeded" in screen.text
    assert "\x1b[" not in screen.text
    assert "\x1b[32msucceeded" in Screen.after(desk, "ps", "--state", "succeeded").text


def test_a_rerun_runs_the_code_of_then(desk: Shell) -> None:
    desk.ended(new_run(desk, "--name", "original"))
    desk.write("train.py", "raise SystemExit('changed since')")
    try:
        done = desk.stoker("rerun", "original")
    finally:
        desk.write("train.py", SCRIPT)
    assert done.stdout.startswith("hello from job-")
    assert "a rerun of original" in done.stderr


def test_a_difference_is_shown(desk: Shell) -> None:
    desk.ended(new_run(desk, "--name", "before"))
    desk.ended(new_run(desk, "--name", "after", "--set", "env.SLEEP=0.1"))
    out = desk.stoker("diff", "before", "after").stdout
    assert re.search(r"env\.SLEEP +- +0\.1", out)
    desk.write("train.py", "print('hello')")
    try:
        desk.ended(new_run(desk, "--name", "rewritten"))
    finally:
        desk.write("train.py", SCRIPT)
    assert "+print('hello')" in desk.stoker("diff", "after", "rewritten").stdout.splitlines()


def test_metrics_are_shown_and_drawn(desk: Shell) -> None:
    desk.write("metrics.py", "import json\nfor n in range(20): print(json.dumps({'step': n, 'loss': 1 / (n + 1)}))")
    desk.job("python metrics.py")
    try:
        desk.stoker("run", "--name", "measured")
    finally:
        desk.job("python train.py")
    assert re.search(r"loss +0\.05 +0\.05 +1 +19 +20", desk.stoker("show", "measured").stdout)
    assert re.search(r"1 ┤", desk.stoker("show", "measured", "--plot", "loss").stdout)
    assert "1 ┤" in desk.stoker("show", "--plot", "measured").stdout
    assert "`loss`?" in desk.stoker("show", "measured", "--plot", "los", code=2).stderr
    assert "loss 0.05 @ 19" in desk.stoker("ps", "-n", "5").stdout


def test_a_running_run_cannot_be_removed(desk: Shell) -> None:
    name = new_run(desk, "--set", "env.SLEEP=30")
    done = desk.refused("rm", name)
    assert done["cause"] == Cause.RUN_ACTIVE and f"`stoker cancel {name}`" in done["hint"]
    desk.stoker("cancel", name)
    assert desk.stoker("rm", name, "--yes").stderr == f"deleted {name}\n"


def test_nothing_is_removed_without_a_word_or_by_an_experiments_name(desk: Shell) -> None:
    desk.job("python train.py", name="gone")
    for _ in range(2):
        desk.stoker("run")
    with desk.start("rm", "gone-1", stdin=subprocess.PIPE) as asked:
        _, err = asked.communicate("n\n", timeout=PATIENCE_S)
    assert (asked.returncode, "add `--yes`" in err) == (2, True)
    refused = desk.refused("rm", "gone", "--yes")
    assert refused["cause"] == Cause.EXPERIMENT_NAMED
    assert desk.facts("gone-1")["name"] == "gone-1"
    assert desk.facts("gone-2")["name"] == "gone-2"


def test_runs_are_removed_all_or_none(desk: Shell) -> None:
    desk.job("python train.py", name="whole")
    desk.stoker("run")
    desk.job("exit 1", name="kept", keep_failed="10m")
    desk.stoker("run", code=1)
    refused = desk.refused("rm", "whole-1", "kept-1", "--yes")
    assert refused["cause"] == Cause.NODE_KEPT and "`kept-1`" in refused["message"]
    assert desk.facts("whole-1")["name"] == "whole-1"
    desk.stoker("release", "kept-1")
    desk.stoker("rerun", "kept-1", "--set", "env.MORE=1", code=1)
    again = desk.facts("kept-2")["job"]
    assert again["env"] == {"MORE": "1"} and not again.get("keep_failed"), "to keep a node is for one run"


def test_output_that_comes_late_is_shown_with_one_rank_per_gpu(desk: Shell) -> None:
    desk.job("sleep 2; echo at last", name="late", processes="gpus", env={"CUDA_VISIBLE_DEVICES": ""})
    assert "at last" in desk.stoker("run").stdout


def test_outputs_come_back_from_a_server_elsewhere_too(desk: Shell, tmp_path: Path) -> None:
    desk.stoker("server", "stop")
    desk.stoker("server", "start", "--port", "0")
    server = json.loads((desk.home / "server.json").read_text())
    named = {"STOKER_SERVER": server["http"], "STOKER_TOKEN": server["token"], "STOKER_HOME": str(tmp_path / "home")}
    away = Shell(tmp_path / "home", tmp_path, desk.environ | named)
    away.write("train.py", SCRIPT)
    away.job("python train.py")
    assert "outputs in outputs/far (1 file, 7 B)" in away.stoker("run", "--name", "far").stderr
    assert (tmp_path / "outputs/far/model.txt").read_text() == "weights"


def test_init_writes_a_file_that_can_be_planned_and_run(desk: Shell, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')")
    here = Shell(desk.home, tmp_path, desk.environ)
    done = here.stoker("init")
    assert done.stderr.splitlines()[0].startswith("wrote stoker.yaml")
    assert "python train.py" in done.stderr
    assert here.refused("init")["cause"] == Cause.FILE_EXISTS
    here.stoker("init", "train.py", "--force")
    assert "python train.py" in here.stoker("plan").stdout
    assert here.stoker("run").stdout == "trained\n"


def test_nothing_yet_is_answered_with_how_to_start(desk: Shell, tmp_path: Path) -> None:
    fresh = Shell(tmp_path / "home", tmp_path, {**desk.environ, "STOKER_HOME": str(tmp_path / "home")})
    try:
        assert "not running" in fresh.stoker("server", "status", code=1).stderr
        assert json.loads(fresh.stoker("ps", "--json").stdout)["runs"] == []
        assert fresh.refused("show")["cause"] == Cause.NO_RUNS_YET
        assert fresh.refused("run")["cause"] == Cause.JOB_FILE_MISSING
    finally:
        assert "stopped the server" in fresh.stoker("server", "stop").stderr
    fresh.stoker("server", "stop")


def test_run_names_are_completed_and_no_server_is_started_for_it(desk: Shell, tmp_path: Path) -> None:
    new_run(desk, "--name", "completed-one")
    asking = {"_STOKER_COMPLETE": "bash_complete", "COMP_WORDS": "stoker show compl", "COMP_CWORD": "2"}
    complete = [sys.executable, "-c", "from stoker.cli import main; main()"]
    done = subprocess.run(complete, env=desk.environ | asking, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "plain,completed-one\n"
    elsewhere = desk.environ | asking | {"STOKER_HOME": str(tmp_path / "none")}
    done = subprocess.run(complete, env=elsewhere, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert not (tmp_path / "none").exists()


def test_a_home_that_cannot_be_written_is_a_failure_with_advice(desk: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = Shell(tmp_path / "file", tmp_path, {**desk.environ, "STOKER_HOME": str(tmp_path / "file")})
    done = broken.stoker("doctor", code=1)
    assert re.search(r"fail +home", done.stdout)
    assert "STOKER_HOME" in done.stdout


def test_a_run_begins_with_what_happens_if_this_computer_is_closed(shell: Shell) -> None:
    shell.job("true")
    sentence = "The run stops while this computer sleeps, and continues when it wakes."
    first = shell.stoker("run", "--name", "closing").stderr.splitlines()[:3]
    assert sentence in first
    assert sentence in shell.stoker("plan").stdout


def test_cleanup_shows_machines_at_work_and_kept_ones_beside_what_is_left(shell: Shell) -> None:
    shell.write("train.py", "import time; time.sleep(60)")
    shell.job("python3 train.py")
    shell.stoker("run", "-d", "--name", "busy")
    shell.write("train.py", "raise SystemExit(3)")
    shell.stoker("run", "--name", "broken", "--keep-failed", "5m", code=3)
    shown = shell.stoker("cleanup")
    assert "busy" in shown.stdout
    assert "kept for broken until" in shown.stdout
    assert "0 resources left" in shown.stderr
    told = json.loads(shell.stoker("cleanup", "--json").stdout)
    assert (told["left"], {one["run_name"] for one in told["used"]}) == ([], {"busy", "broken"})
    assert {bool(one["kept_until"]) for one in told["used"]} == {True, False}
    assert all(one["spent_usd"] == "0" for one in told["used"])
    shell.stoker("cancel", "busy")
    shell.stoker("release", "broken")


def test_who_watches_a_run_sees_the_last_lines_before_an_eviction(desk: Shell) -> None:
    desk.write("count.py", COUNTS_UNTIL_TAKEN)
    desk.job("python count.py")
    with desk.start("run", "--name", "taken") as watching:
        desk.wait_for(lambda: desk.stoker("logs", "taken", code=None).stdout.count("\n") > 20, "lines")
        desk.stoker("evict", "taken", "--notice", "1s")
        seen, _ = watching.communicate(timeout=90)
    assert seen == desk.stoker("logs", "taken").stdout
    assert seen.endswith("the end\n")


COUNTS_UNTIL_TAKEN = """
    import itertools, os, time
    for number in itertools.count() if os.environ["STOKER_ATTEMPT"] == "1" else ():
        print(number, flush=True)
        time.sleep(0.02)
    print("the end")
"""

"""Faults of real machines, applied to real processes: each ends in a clear state, and nothing is lost."""

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.model.cause import Cause

# Prints numbered lines for about two seconds, and leaves a file that shows that it finished.
COUNTER = """
    import pathlib, sys, time
    for n in range(40):
        print(f"line {n}", flush=True)
        time.sleep(0.05)
    pathlib.Path("outputs/done.txt").write_text("42")
"""


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def logged(shell: Shell, run: str, attempt: int) -> str:
    return shell.stoker("logs", run, "--attempt", str(attempt), "--raw").stdout


def right_end(shell: Shell, run: str) -> dict[str, Any]:
    """The run succeeded, once, with all of its log and its output."""
    facts = shell.ended(run)
    assert facts["state"] == "succeeded", facts
    attempt = facts["attempts"][-1]
    assert [one["outcome"] for one in facts["attempts"]].count("succeeded") == 1
    assert logged(shell, run, attempt["number"]) == "".join(f"line {n}\n" for n in range(40))
    folder = Path(shell.wait_for(lambda: shell.facts(run)["landed"], "the outputs"))
    assert (folder / "done.txt").read_text() == "42"
    return facts


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(5))
def test_a_server_killed_at_random_moments_loses_no_run(shell: Shell, seed: int) -> None:
    chance = random.Random(seed)
    shell.write("train.py", COUNTER)
    shell.job("python train.py")
    names = ["job-1", "job-2"]
    for _ in names:
        shell.stoker("run", "--detach")
    for _ in range(5):
        time.sleep(chance.uniform(0, 0.5))
        shell.kill_server()
        shell.stoker("ps")
    for name in names:
        facts = right_end(shell, name)
        assert len(facts["attempts"]) == 1, "killing the server must not cost an attempt"


@pytest.mark.parametrize("seed", range(5))
def test_an_agent_killed_at_random_moments_costs_an_attempt_not_the_run(shell: Shell, seed: int) -> None:
    chance = random.Random(seed)
    shell.write("train.py", COUNTER)
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    killed = 0
    for _ in range(3):
        time.sleep(chance.uniform(0, 0.7))
        for pid in shell.agents():
            kill(pid)
            killed += 1
    facts = right_end(shell, "job-1")
    assert len(facts["attempts"]) <= killed + 1
    shell.wait_for(
        lambda: not any("train.py" in command for command in shell.processes().values()), "orphans to be gone"
    )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (1, 2))])
def test_server_and_agent_killed_together_leave_one_right_end(shell: Shell, seed: int) -> None:
    chance = random.Random(seed)
    shell.write("train.py", COUNTER)
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    for _ in range(3):
        time.sleep(chance.uniform(0, 0.6))
        victims = [shell.server_pid(), *shell.agents()]
        for pid in chance.sample(victims, chance.randint(1, len(victims))):
            if pid:
                kill(pid)
        shell.stoker("ps")
    right_end(shell, "job-1")


def test_a_run_continues_without_a_server_which_catches_up_later(shell: Shell) -> None:
    shell.write("train.py", COUNTER)
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    shell.wait_for(shell.agents, "the agent")
    shell.kill_server()
    shell.wait_for(lambda: not shell.agents(), "the agent to finish alone")
    facts = right_end(shell, "job-1")
    assert len(facts["attempts"]) == 1


def test_a_damaged_database_is_rebuilt_and_no_run_is_lost(shell: Shell) -> None:
    shell.job("echo hello; echo 1 > outputs/x")
    shell.stoker("run")
    shell.stoker("server", "stop")
    database = shell.home / "stoker.db"
    database.write_bytes(b"not a database at all" * 500)
    assert "job-1" in shell.stoker("ps").stdout
    assert shell.stoker("logs", "job-1").stdout == "hello\n"
    assert list(shell.home.glob("stoker.db.damaged-*")), "the damaged file is kept"
    shell.stoker("run")
    assert shell.facts("job-2")["state"] == "succeeded"


def test_a_port_that_is_taken_is_named(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shell.environ["STOKER_PORT"] = str(taken.getsockname()[1])
        error = shell.refused("ps", code=125)
    assert error["code"] == "server-unavailable" and shell.environ["STOKER_PORT"] in error["message"]
    assert error["hint"]
    assert "Traceback" not in error["message"]


def test_a_home_that_cannot_be_written_is_named(shell: Shell) -> None:
    blocked = shell.folder / "a-file"
    blocked.write_text("")
    shell.environ["STOKER_HOME"] = str(blocked / "home")
    done = shell.stoker("ps", code=125)
    assert str(blocked) in done.stderr
    assert "STOKER_HOME" in done.stderr


def test_a_missing_script_is_named_before_anything_runs(shell: Shell) -> None:
    shell.job("python no_such_file.py")
    done = shell.stoker("run", code=2)
    assert "no_such_file.py" in done.stderr
    assert json.loads(shell.stoker("ps", "--json").stdout)["runs"] == []


def test_a_missing_script_that_only_the_shell_can_name_is_the_scripts_own_failure(shell: Shell) -> None:
    shell.job("name=no_such_file.py; python $name")
    done = shell.stoker("run", code=2)
    assert "no_such_file.py" in done.stdout


def test_a_missing_command_is_named(shell: Shell) -> None:
    shell.job("pythn train.py")
    done = shell.stoker("run", code=127)
    assert "pythn" in done.stderr


def test_a_missing_requirement_is_named_before_anything_runs(shell: Shell) -> None:
    shell.write("requirements.txt", "no-such-package-for-stoker==99.99\n")
    shell.job("touch outputs/ran", environment="requirements.txt")
    done = shell.stoker("run", code=2)
    assert "no-such-package-for-stoker" in done.stderr
    assert json.loads(shell.stoker("ps", "--all", "--json").stdout)["runs"] == []


def test_a_conda_file_of_pip_packages_is_locked_and_installed_by_uv(shell: Shell) -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    shell.write("environment.yml", f"name: x\ndependencies: [python={here}, pip, {{pip: [six==1.16.0]}}]\n")
    shell.write("train.py", "import six; print('six', six.__version__)")
    shell.job("python train.py", environment="environment.yml")
    assert "six 1.16.0" in shell.stoker("run").stdout
    assert len(shell.facts("job-1")["lock"]) == 64


def test_a_wrong_python_is_named(shell: Shell) -> None:
    shell.write("train.py", "print('x')")
    shell.job("python train.py", environment={"python": "/nowhere/python3"})
    done = shell.stoker("run", code=None)
    assert done.returncode != 0
    assert "/nowhere/python3" in done.stderr


def test_a_script_killed_by_a_signal_ends_with_128_plus_the_signal(shell: Shell) -> None:
    shell.write("train.py", "import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    shell.job("exec python train.py")
    done = shell.stoker("run", code=137)
    assert "SIGKILL" in done.stderr


@pytest.mark.heavy  # the agent's own test is quicker
def test_a_script_that_ignores_sigterm_is_killed_on_cancel(shell: Shell) -> None:
    shell.write(
        "train.py",
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(99)",
    )
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: "up" in logged(shell, "job-1", 1), "the script")
    shell.stoker("cancel", "job-1", "--yes")
    assert shell.ended("job-1")["state"] == "cancelled"
    shell.wait_for(lambda: not any("train.py" in c for c in shell.processes().values()), "the script to be gone")


def test_no_grandchild_survives_a_cancel(shell: Shell) -> None:
    shell.write(
        "train.py",
        """
        import subprocess, time
        subprocess.Popen(["setsid", "sleep", "987"])
        print("up", flush=True)
        time.sleep(99)
        """,
    )
    shell.job("python train.py & python train.py")
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: logged(shell, "job-1", 1).count("up") == 2, "both scripts")
    shell.stoker("cancel", "job-1", "--yes")
    shell.ended("job-1")
    shell.wait_for(
        lambda: not any("987" in c or "train.py" in c for c in shell.processes().values()), "grandchildren to be gone"
    )


def test_a_script_that_closes_its_stdout_and_forks_still_ends(shell: Shell) -> None:
    shell.write(
        "train.py",
        """
        import os, sys, time
        print("before", flush=True)
        os.close(1)
        if os.fork() == 0:
            time.sleep(60)
        os._exit(5)
        """,
    )
    shell.job("exec python train.py")
    assert shell.stoker("run", code=5).stdout == "before\n"
    shell.wait_for(lambda: not any("train.py" in c for c in shell.processes().values()), "the fork to be gone")


def test_binary_garbage_and_a_very_long_line_arrive_byte_for_byte(shell: Shell) -> None:
    shell.write("train.py", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100 + b'x' * 1_000_000 + b'\\n')")
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    shell.ended("job-1")
    out = shell.raw("logs", "job-1", "--raw")
    assert (
        hashlib.sha256(out).hexdigest()
        == hashlib.sha256(bytes(range(256)) * 100 + b"x" * 1_000_000 + b"\n").hexdigest()
    )


def test_many_small_output_files_all_land(shell: Shell) -> None:
    shell.write(
        "train.py",
        "import pathlib\nfor n in range(5000):\n    pathlib.Path(f'outputs/{n}.txt').write_text(str(n))",
    )
    shell.job("python train.py")
    shell.stoker("run")
    landed = {path.name: path.read_text() for path in (shell.folder / "outputs" / "job-1").glob("*.txt")}
    assert landed == {f"{n}.txt": str(n) for n in range(5000)}


def test_a_secret_is_nowhere_but_in_the_script(shell: Shell) -> None:
    value = "hunter2-very-secret-value"
    shell.environ["HF_TOKEN"] = value
    shell.write("train.py", "import os; print('token', os.environ['HF_TOKEN'], len(os.environ['HF_TOKEN']))")
    shell.job("python train.py; sleep 1", secrets=["HF_TOKEN"])
    with shell.start("run") as process:
        while process.poll() is None:
            assert not any(value in command for command in shell.processes().values())
            time.sleep(0.05)
        assert process.stdout is not None
        assert process.stdout.read() == f"token {'*' * len(value)} {len(value)}\n"
    for path in shell.home.rglob("*"):
        if path.is_file():
            assert value.encode() not in path.read_bytes(), path


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group with 60 MB of memory, as a small machine would have."""
    top = Path("/sys/fs/cgroup/memory") if Path("/sys/fs/cgroup/memory").is_dir() else Path("/sys/fs/cgroup")
    group = top / f"stoker-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = "memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max"
        (group / limit).write_text("60000000")
    except OSError as error:
        pytest.skip(f"only root can limit memory: {error}")
    yield group
    for _ in range(50):
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def test_a_script_killed_for_lack_of_memory_says_so(shell: Shell, memory_group: Path) -> None:
    shell.write("train.py", "print('growing', flush=True); memory = bytearray(500_000_000); print(len(memory))")
    shell.job(f"echo $$ > {memory_group}/cgroup.procs; exec python train.py")
    done = shell.stoker("run", code=137)
    assert done.stdout == "growing\n"
    assert shell.facts("last")["cause"] == Cause.OUT_OF_MEMORY


@pytest.fixture
def small_disk(shell: Shell, tmp_path: Path) -> Iterator[Path]:
    """The home is on a disk of 12 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("only root can make a small disk")
    shell.home = disk / "home"
    shell.environ["STOKER_HOME"] = str(shell.home)
    yield disk
    for pid in shell.processes():
        kill(pid)
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.heavy
def test_a_full_disk_is_reported_and_nothing_is_lost(shell: Shell, small_disk: Path) -> None:
    script = """
        import pathlib
        print("filling", flush=True)
        pathlib.Path("outputs/small.txt").write_text("kept")
        pathlib.Path("outputs/large.bin").write_bytes(b"x" * 50_000_000)
    """
    shell.write("train.py", script)
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    with shell.start("logs", "--follow", "job-1") as following:
        shell.wait_for(lambda: "the disk is full" in shell.facts("job-1")["reason"], "the reason")
        time.sleep(6)  # a watcher is informed within five seconds
        subprocess.run(["mount", "-o", "remount,size=90m", small_disk], check=True)
        out, err = following.communicate(timeout=60)
    assert "No space left on device" in out
    assert "the disk is full" in err
    facts = shell.ended("job-1")
    assert (facts["state"], facts["exit_code"]) == ("failed", 1)
    shell.wait_for(lambda: shell.facts("job-1")["landed"], "the outputs")
    assert (shell.folder / "outputs" / "job-1-failed" / "small.txt").read_text() == "kept"


def followed(shell: Shell, until: ExitStack) -> subprocess.Popen[str]:
    """Killed at the end: following a run that never ends would wait forever."""
    follower = until.enter_context(shell.start("logs", "-f", "chatty"))
    until.callback(follower.kill)
    return follower


@pytest.mark.heavy
def test_following_logs_outlives_a_store_and_a_server_that_are_away(shell: Shell) -> None:
    """One that existed before the store failed, and one that starts meanwhile: every line, once."""
    shell.write("train.py", "import time\nfor n in range(200):\n    print('line', n, flush=True)\n    time.sleep(0.1)")
    shell.job("python3 train.py")
    shell.stoker("run", "-d", "--name", "chatty")
    shell.wait_for(lambda: "line 3" in shell.stoker("logs", "chatty").stdout, "its first lines")
    store, away = shell.home / "store", shell.home / "away"
    with ExitStack() as followers:
        first = followed(shell, followers)
        time.sleep(1.0)
        store.rename(away)
        second = followed(shell, followers)
        time.sleep(9.0)
        shell.kill_server()
        time.sleep(2.0)
        away.rename(store)
        outs = [one.communicate(timeout=90) for one in (first, second)]
    wanted = [f"line {number}" for number in range(200)]
    for number, (out, err) in enumerate(outs):
        assert out.splitlines() == wanted, f"{number}: {err}"
    assert "waiting: " in outs[0][1]
    assert shell.facts("chatty")["state"] == "succeeded"

"""The hang doctor with real processes: who is behind, where each rank is, and who is left in peace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

import stoker
from stoker.agent.processes.doctor import by_rank
from stoker.agent.processes.stacks import StackTaker, asked
from stoker.model.cause import Cause

HOOK = Path(stoker.__file__).parent / "checkpoint" / "startup"
STUCK = "import queue, sys; print('on', flush=True); queue.Queue().get()"

# Two ranks of a real framework, one of which never comes to the second collective.
LATE = """
    import time, torch
    import torch.distributed as dist
    def load(step):
        if dist.get_rank() == 1 and step == 1:
            time.sleep(1e6)
    def main():
        dist.init_process_group("gloo")
        for step in range(3):
            load(step)
            dist.all_reduce(torch.ones(3))
            print("step", step, flush=True)
    main()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    some: list[subprocess.Popen[str]] = []
    yield some
    for one in some:
        os.killpg(one.pid, signal.SIGKILL)  # with what it has started
        one.wait()


def begin(
    started: list[subprocess.Popen[str]], *words: str, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """A process that has printed its first line."""
    hooked = {**os.environ, "PYTHONPATH": str(HOOK)} if env is None else env
    process = subprocess.Popen(words, env=hooked, stdout=subprocess.PIPE, text=True, start_new_session=True)
    started.append(process)
    assert process.stdout
    assert process.stdout.readline() == "on\n"
    return process


def once(process: subprocess.Popen[str], work: Path, inside: str) -> Any:
    """The stacks, once the script is where it stays: it prints its line a little before."""
    deadline = time.monotonic() + 60
    while not (one := taken(process, work)).frames or one.frames[0].function != inside:
        assert time.monotonic() < deadline, one
        time.sleep(0.05)
    return one


def taken(process: subprocess.Popen[str], work: Path, path: str = "") -> Any:
    (one,) = StackTaker(work, str, path).take(by_rank({process.pid: 0}, ()))
    return one


def test_a_python_process_shows_its_stack_with_the_line_of_code_and_goes_on(started: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import queue\nprint('on', flush=True)\nqueue.Queue().get()\n")
    process = begin(started, sys.executable, str(tmp_path / "train.py"))
    for _ in range(3):
        one = once(process, tmp_path, "wait")
        assert one.stacks[0].name == "main thread"
        assert one.frames[-1].place == "train.py:3 in <module>, `queue.Queue().get()`"
        assert one.frames[0].file == "threading.py"
    assert process.poll() is None


def test_the_hook_runs_the_sitecustomize_that_it_hides(tmp_path: Path) -> None:
    code = "import sys; print(sys.modules['sitecustomize'].__file__, 'startup' in ''.join(sys.path))"
    said = []
    for text in ("", "import nowhere_to_be_found"):
        (tmp_path / "sitecustomize.py").write_text(f"print('mine')\n{text}\n")
        env = {**os.environ, "PYTHONPATH": f"{HOOK}{os.pathsep}{tmp_path}"}
        said.append(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True))
    assert said[0].stdout == f"mine\n{tmp_path}/sitecustomize.py False\n"
    assert "No module named 'nowhere_to_be_found'" in said[1].stderr, "its errors are shown as Python shows them"


def test_forked_workers_belong_to_their_rank_and_show_their_own_stacks(started: Any, tmp_path: Path) -> None:
    code = """
        import os, time
        def work(): time.sleep(1e6)
        def wait(): os.wait()
        if os.fork() == 0: work()
        time.sleep(0.5); print("on", flush=True); wait()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(code))
    one = once(begin(started, sys.executable, str(tmp_path / "train.py")), tmp_path, "wait")
    assert [stack.frames[0].function for stack in one.stacks] == ["wait", "work"]


@pytest.mark.parametrize(
    "words",
    [
        (sys.executable, "-I", "-c", STUCK),  # without the hook
        ("/bin/sh", "-c", "echo on; sleep 1000"),
        (sys.executable, "-c", "import os; print('on', flush=True); os.execvp('sleep', ['sleep', '1000'])"),
        (sys.executable, "-c", f"import os; os.closerange(3, 4096); {STUCK}"),
        (sys.executable, "-c", f"import signal; signal.signal(47, signal.SIG_DFL); {STUCK}"),
    ],
)
def test_a_process_that_has_not_asked_for_the_signal_never_gets_it(words: tuple[str, ...], started: Any) -> None:
    process = begin(started, *words)
    time.sleep(0.2)  # the one that becomes another program has done so
    assert asked(process.pid) is None
    one = taken(process, Path("/nowhere"))
    assert one.stacks == ()
    assert "no Python stack was available" in one.note
    assert f"(process {process.pid}) is " in one.note
    assert process.poll() is None


def test_a_stopped_process_is_not_waited_for_long(started: Any) -> None:
    process = begin(started, sys.executable, "-c", STUCK)
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    one = taken(process, Path("/nowhere"))
    assert time.monotonic() - began < 10
    assert "the process did not answer; " in one.note
    assert "is stopped" in one.note


def test_py_spy_is_asked_for_a_process_without_the_hook(started: Any, tmp_path: Path) -> None:
    spy = tmp_path / "py-spy"
    frame = '{"name": "main", "filename": "train.py", "line": 7}'
    spy.write_text(f"""#!/bin/sh\necho '[{{"thread_id": 1, "thread_name": "MainThread", "frames": [{frame}]}}]'\n""")
    spy.chmod(0o755)
    process = begin(started, sys.executable, "-I", "-c", STUCK)
    assert taken(process, tmp_path, str(tmp_path)).frames[0].place == "train.py:7 in main"
    spy.write_text("#!/bin/sh\necho 'Permission Denied: try sudo' >&2\nexit 1\n")
    assert "py-spy failed: Permission Denied: try sudo; " in taken(process, tmp_path, str(tmp_path)).note


# Whole runs.


def hung(shell: Shell, run: str) -> list[str]:
    """What `stoker explain` says once the run hangs."""

    def look() -> list[str] | None:
        said = shell.stoker("explain", run).stdout
        return said.splitlines() if "no progress for" in said else None

    return list(shell.wait_for(look, f"{run} to be found hung", patience_s=240))


def test_a_script_that_waits_forever_is_explained_and_left_running_and_a_busy_one_is_not_hung(shell: Shell) -> None:
    shell.write("stuck.py", "import queue\nwaiting = queue.Queue()\nkey = 'hunter2-hunter2'; waiting.get()\n")
    shell.write("busy.py", "import time\nend = time.time() + 8\nwhile time.time() < end: pass\n")
    shell.environ["KEY"] = "hunter2-hunter2"
    shell.job("python stuck.py", hang="3s", secrets=["KEY"])
    shell.stoker("run", "-d")
    said = hung(shell, "job-1")
    (told,) = [line for line in said if "no progress for" in line]
    assert "it is at stuck.py:3 in <module>, `key = '***************'; waiting.get()`, inside wait of threading" in told
    assert any("threading.py" in line and " in wait" in line for line in said)
    assert "it is running, and makes no progress" in said
    facts = shell.facts("job-1")
    assert (facts["state"], facts["cause"]) == ("running", Cause.HUNG)
    shell.stoker("cancel", "job-1")
    shell.job("python busy.py", hang="3s")
    shell.stoker("run")
    assert "no progress" not in shell.stoker("explain", "job-2").stdout


@pytest.mark.heavy
def test_a_hung_script_is_restarted_where_the_job_says_so(shell: Shell) -> None:
    shell.write(
        "stuck.py", "import os, queue\nif os.environ['STOKER_ATTEMPT'] == '1': queue.Queue().get()\nprint('done')\n"
    )
    shell.job("python stuck.py", hang={"after": "4s", "action": "restart"}, retries=1)
    shell.stoker("run")
    facts = shell.facts("job-1")
    assert facts["state"] == "succeeded"
    assert [one["outcome"] for one in facts["attempts"]] == ["failed", "succeeded"]
    first, second = facts["attempts"]
    assert (first["cause"], second["cause"]) == (Cause.HUNG, "") and "stuck.py:2" in first["message"]
    kinds = [one["kind"] for one in json.loads(shell.stoker("show", "job-1", "--json").stdout)["events"]]
    assert "hang" in kinds and "hang-over" not in kinds


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [{"processes": 2}, {"nodes": 2}], ids=["processes", "nodes"])
def test_the_rank_that_others_wait_for_is_named_with_its_line_of_code(shell: Shell, ranks: dict[str, int]) -> None:
    shell.write("train.py", LATE)
    shell.job("python train.py", hang="8s", **ranks)
    shell.stoker("run", "-d")
    said = hung(shell, "job-1")
    (told,) = [line for line in said if "no progress for" in line]
    assert "rank 1 is behind: it is at train.py:6 in load, `time.sleep(1e6)`; rank 0 waits in all_reduce" in told
    assert "  rank 0, main thread, waits in all_reduce:" in said
    events = shell.stoker("show", "job-1").stdout
    assert "rank 1 is behind" in events
    shell.stoker("cancel", "job-1")


def test_the_stacks_of_all_nodes_are_shown_on_demand_and_the_ranks_continue(shell: Shell) -> None:
    shell.write(
        "train.py",
        """
        import os, time
        def waits_for_data():
            while not os.path.exists(GO): time.sleep(0.05)
        def computes():
            while not os.path.exists(GO): sum(range(1000))
        GO = os.environ["GO"]
        print("on", flush=True)
        computes() if os.environ["RANK"] == "0" else waits_for_data()
        """,
    )
    go = shell.folder / "go"
    shell.job("python train.py", nodes=2, env={"GO": str(go)})
    shell.stoker("run", "--detach", "--name", "pair")
    shell.wait_for(lambda: shell.stoker("logs", "pair").stdout.count("on") == 2, "both ranks")

    def told() -> str:
        said = shell.stoker("stacks", "pair").stdout
        return said if "in computes" in said and "in waits_for_data" in said else ""

    said = shell.wait_for(told, "the stacks of both nodes")
    assert said.index("rank 0, main thread") < said.index("in computes") < said.index("rank 1, main thread")
    found = json.loads(shell.stoker("stacks", "pair", "--json").stdout)["ranks"]
    assert [one["rank"] for one in found] == [0, 1]
    key = shell.facts("pair")["attempts"][0]["peers"][0]["key"]
    assert f"/{key}/" in shell.stoker("exec", "--node", "1", "pair", "--", "pwd").stdout
    assert shell.refused("exec", "--node", "2", "pair", "--", "true")["cause"] == Cause.NO_SUCH_NODE
    go.touch()
    assert shell.ended("pair")["state"] == "succeeded"
    assert shell.refused("stacks", "pair")["cause"] == Cause.NO_NODE

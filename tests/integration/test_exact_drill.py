"""The drill that the exactness tests share: one script, run undisturbed and with kills, and what must be the same.

A host process imports the framework once and forks every attempt, because importing is most of a small training's time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST = """
import importlib, json, os, runpy, signal, sys, time, traceback

plan = json.load(open(sys.argv[1]))
for name in plan["imports"]:
    importlib.import_module(name)
sys.argv = [plan["script"]]


def attempt(one):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            os.environ.update(one["env"])
            os.chdir(one["folder"])
            out = os.open("out.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1), os.dup2(out, 2)
            if os.environ.get("HOOK"):
                from stoker.checkpoint.exact.hooks import install
                install()
            runpy.run_path(plan["script"], run_name="__main__")
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            import atexit
            atexit._run_exitfuncs()
            os._exit(code)
    log, notice, status = os.path.join(one["folder"], "steps.log"), one["env"].get("STOKER_NOTICE"), None
    while status is None:
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = code
            break
        lines = open(log).read().count("\\n") if os.path.exists(log) else 0
        if one["notice_at"] is not None and lines >= one["notice_at"] and not os.path.exists(notice):
            now = time.time()
            open(notice + ".new", "w").write(json.dumps({"at": now, "deadline": now + 30, "kind": "evict"}))
            os.replace(notice + ".new", notice)
        if one["kill_at"] is not None and lines >= one["kill_at"]:
            if one["notice_at"] is None or os.path.exists(notice + ".saved"):
                os.killpg(pid, signal.SIGKILL)
                one["kill_at"] = None
        time.sleep(0.001)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if notice:
        for leftover in (notice, notice + ".saved"):
            if os.path.exists(leftover):
                os.rename(leftover, leftover + "." + str(time.time_ns()))
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


for one in plan["attempts"]:
    print(attempt(one), flush=True)
"""
KILLED = -9


@dataclass
class Drill:
    """A script that writes `step loss` lines to `steps.log`, and `final.json` when it is done."""

    place: Path
    script: str
    imports: tuple[str, ...] = ("torch",)
    backend: str = "torch"  # of Keras
    python: str = sys.executable
    patience_s: float = 110
    attempts: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, *, kill_at: int | None = None, notice_at: int | None = None, **env: str) -> None:
        """One more attempt of the run `name`. Killed once so many lines are in its log, counted over all attempts."""
        folder = self.place / name
        folder.mkdir(exist_ok=True)
        files = {"STOKER_CHECKPOINTS": "checkpoints", "STOKER_NOTICE": "notice", "STOKER_METRICS": "metrics"}
        env = {**{variable: str(folder / file) for variable, file in files.items()}, **env}
        self.attempts.append({"folder": str(folder), "env": env, "kill_at": kill_at, "notice_at": notice_at})

    def run(self) -> list[int]:
        """The exit codes of the attempts, in their order."""
        script, plan, host = (self.place / name for name in ("train.py", "plan.json", "host.py"))
        script.write_text(textwrap.dedent(self.script), encoding="utf-8")
        host.write_text(HOST, encoding="utf-8")
        plan.write_text(
            json.dumps({"imports": self.imports, "script": str(script), "attempts": self.attempts}), encoding="utf-8"
        )
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "RANK", "WORLD_"))}
        env = {**kept, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "KERAS_BACKEND": self.backend}
        command = [self.python, str(host), str(plan)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=self.patience_s, check=False)
        assert done.returncode == 0, done.stderr
        return [int(code) for code in done.stdout.split()]

    def steps(self, name: str) -> dict[int, str]:
        """The output of each step. A repeated step must have the same output."""
        found: dict[int, str] = {}
        for line in self.lines(name):
            step, _, said = line.partition(" ")
            assert found.setdefault(int(step), said) == said, f"step {step} was {found[int(step)]}, then {said}"
        return found

    def lines(self, name: str) -> list[str]:
        return (self.place / name / "steps.log").read_text(encoding="utf-8").splitlines()

    def repeated(self, name: str) -> int:
        """How many steps were done more than once."""
        lines = [line.partition(" ")[0] for line in self.lines(name)]
        return len(lines) - len(set(lines))

    def shares(self, name: str) -> list[float]:
        """How much was done, as reported on the way."""
        told = [json.loads(line) for line in (self.place / name / "metrics").read_text(encoding="utf-8").splitlines()]
        return [one["values"]["progress"] for one in told if "progress" in one["values"]]

    def final(self, name: str) -> dict[str, Any]:
        final: dict[str, Any] = json.loads((self.place / name / "final.json").read_text(encoding="utf-8"))
        return final

    def said(self, name: str) -> str:
        return (self.place / name / "out.log").read_text(encoding="utf-8")

    def assert_same(self, name: str, other: str = "undisturbed") -> None:
        assert self.steps(name) == self.steps(other)
        assert self.final(name) == self.final(other)


COUNTER = """
import json, os, time
from stoker.checkpoint import Checkpoint

state = Checkpoint(every=5)
begin = state.get("total", 0) if os.environ.get("HONEST") else 0
state["total"] = begin
log = os.open("steps.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for step in state.range(40):
    state["total"] += step
    os.write(log, f"{step} {state['total']}\\n".encode())
    time.sleep(0.01)
    state.step()
json.dump({"total": state["total"]}, open("final.json", "w"))
"""


def test_drill_tells_a_script_that_resumes_from_one_that_forgets(tmp_path: Path) -> None:
    drill = Drill(tmp_path, COUNTER, imports=())
    drill.add("undisturbed", HONEST="1")
    drill.add("honest", kill_at=17, HONEST="1")
    drill.add("honest", HONEST="1")
    drill.add("forgetful", kill_at=17)
    drill.add("forgetful")
    assert drill.run() == [0, KILLED, 0, KILLED, 0]
    drill.assert_same("honest")
    assert 0 < drill.repeated("honest") <= 10
    assert drill.final("forgetful") != drill.final("undisturbed")

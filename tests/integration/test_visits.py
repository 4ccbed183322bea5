"""Commands on the node of a run, from the agent that runs them to the shell that shows them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest
from agentnode import RUN, Node, eventually
from shell import Shell

from stoker.errors import Missing
from stoker.model.cause import Cause
from stoker.model.orders import Visit, VisitEnd, Wishes
from stoker.model.run.report import Outcome, Phase
from stoker.model.wire import dump, load
from stoker.model.workspace import layout

WAITS = "import time; print('here', flush=True); time.sleep(600)"
SECRET = "hunter2-hunter2"


class Visitor:
    """The server's part: requests commands, and reads the agent's reports about them."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def wish(self, **visits: tuple[str, ...]) -> None:
        wished = tuple(Visit(id, words) for id, words in visits.items())
        self.node.store.put(layout.wishes(RUN, self.node.attempt), dump(Wishes(visits=wished)))

    def said(self, id: str, name: str = "out") -> bytes:
        try:
            return self.node.store.get(layout.visit(RUN, self.node.attempt, id) + name)
        except Missing:
            return b""

    def end(self, id: str) -> VisitEnd:
        return load(VisitEnd, eventually(lambda: self.said(id, "end.json"), f"the end of {id}"))


@pytest.fixture
def visitor(node: Node) -> Visitor:
    return Visitor(node)


def begin(node: Node, script: str = WAITS, **job: Any) -> subprocess.Popen[bytes]:
    node.order("python train.py", {"train.py": script}, **job)
    agent = node.start(TOKEN=SECRET)
    node.prints(b"here")
    return agent


def test_commands_run_once_where_the_script_is_and_say_all_but_its_secrets(node: Node, visitor: Visitor) -> None:
    agent = begin(node, env={"COLOUR": "green"}, secrets=("TOKEN",))
    look = "ls; echo $COLOUR $STOKER_RUN; echo aside $TOKEN >&2; echo once >> count; exit 7"
    halves = "import os, time; t = os.environ['TOKEN']; os.write(1, t[:5].encode()); time.sleep(0.3); print(t[5:])"
    first = {"look": ("sh", "-c", look), "halves": ("python", "-c", halves), "absent": ("nosuch",)}
    visitor.wish(**first, much=("seq", "1", "200000"))
    stars = b"*" * len(SECRET)
    assert visitor.end("look") == VisitEnd(7)
    assert visitor.said("look") == b"checkpoints\noutputs\ntrain.py\ngreen ants-1\n"
    assert visitor.said("look", "err") == b"aside " + stars + b"\n"
    assert (visitor.end("halves"), visitor.said("halves")) == (VisitEnd(0), stars + b"\n")
    assert visitor.end("absent") == VisitEnd(127)
    assert b"nosuch: not found" in visitor.said("absent", "err")
    assert visitor.end("much") == VisitEnd(0)
    assert visitor.said("much") == "".join(f"{n}\n" for n in range(1, 200_001)).encode()
    visitor.wish(**first, count=("cat", "count"))
    assert (visitor.end("count"), visitor.said("count")) == (VisitEnd(0), b"once\n")
    inside = node.folder / "inside.json"
    assert "TOKEN" not in json.loads(inside.read_bytes())["env"]
    assert inside.stat().st_mode & 0o777 == 0o600
    node.cancel()
    assert node.finish(agent).outcome is Outcome.CANCELLED


def test_a_command_is_ended_when_nobody_wishes_for_it_and_killed_if_it_does_not_heed(
    node: Node, visitor: Visitor
) -> None:
    agent = begin(node)
    heeds = 'trap "echo bye; exit 9" INT; echo begun; while :; do sleep 0.05; done'
    deaf = 'trap "" INT TERM; echo begun; while :; do sleep 0.05; done'
    visitor.wish(heeds=("sh", "-c", heeds), deaf=("sh", "-c", deaf))
    eventually(lambda: visitor.said("heeds") == visitor.said("deaf") == b"begun\n", "what they say while they run")
    assert visitor.said("heeds", "end.json") == b""
    visitor.wish()
    assert visitor.end("heeds").exit_code == 9
    assert visitor.said("heeds") == b"begun\nbye\n"
    assert visitor.end("deaf").exit_code == 137
    assert node.report().phase is Phase.RUNNING, "the script has not noticed"
    node.cancel()
    node.finish(agent)


def test_the_end_of_the_script_ends_the_command_and_the_run_is_not_affected(node: Node, visitor: Visitor) -> None:
    agent = begin(node, "import os, time; print('here', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)")
    visitor.wish(one=("sh", "-c", "touch go; sleep 600"))
    assert visitor.end("one").message, "why it was ended"
    report = node.finish(agent)
    assert report.outcome is Outcome.SUCCEEDED
    assert node.events("left-behind") == []


def test_a_kept_node_lets_people_in_after_the_failure_until_it_is_asked_to_stop(node: Node, visitor: Visitor) -> None:
    agent = begin(
        node, "print('here', flush=True); open('clue', 'w').write('x is nan'); raise SystemExit(3)", keep_failed="10m"
    )
    node.reaches(Phase.DONE)
    assert node.report().outcome is Outcome.FAILED
    visitor.wish(one=("cat", "clue"))
    assert visitor.end("one") == VisitEnd(0)
    assert visitor.said("one") == b"x is nan"
    agent.send_signal(signal.SIGTERM)
    node.finish(agent)


def test_a_kept_node_goes_by_itself_when_its_time_is_up(node: Node) -> None:
    agent = begin(node, "print('here', flush=True); raise SystemExit(3)", keep_failed="1s")
    assert node.finish(agent).exit_code == 3


# --- from the shell


def started(shell: Shell, script: str = WAITS, **job: object) -> str:
    shell.write("train.py", script)
    shell.job("python train.py", **job)
    name = shell.stoker("run", "--detach").stdout.strip()
    shell.wait_for(lambda: "here" in shell.stoker("logs", name).stdout, "the script")
    return name


def test_exec_shows_both_streams_passes_the_exit_code_and_ends_with_whoever_listens(shell: Shell) -> None:
    name = started(shell)
    done = shell.stoker("exec", name, "--", "sh", "-c", "pwd; echo aside >&2; exit 7", code=7)
    assert done.stdout.startswith(str(shell.home / "nodes"))
    assert done.stderr == "aside\n"
    line = 'trap "echo bye; exit 9" INT; echo begun; while :; do sleep 0.05; done'
    with shell.start("exec", name, "sh", "-c", line) as visit:
        assert visit.stdout and visit.stdout.readline() == "begun\n"
        visit.send_signal(signal.SIGINT)
        out, err = visit.communicate(timeout=30)
    assert (visit.returncode, out, err) == (9, "bye\n", "stoker: the visit was ended\n")
    with shell.start("exec", name, "--", "sh", "-c", "echo $$; sleep 600") as visit:
        assert visit.stdout
        pid = int(visit.stdout.readline())
        visit.kill()
        visit.wait()
    shell.wait_for(lambda: not _alive(pid), "the command of somebody who hung up to end")
    assert shell.stoker("ssh", name, "--", "sh", "-c", "pwd; exit 4", code=4).stdout == done.stdout
    spoken = [json.loads(line) for line in shell.stoker("exec", "--json", name, "pwd").stdout.splitlines()]
    assert spoken == [{"stream": "stdout", "text": done.stdout}, {"exit_code": 0, "message": ""}]
    assert shell.facts(name)["state"] == "running"


def test_a_failed_run_keeps_its_node_says_how_to_get_in_and_gives_it_back(shell: Shell) -> None:
    shell.write("train.py", "open('clue', 'w').write('x is nan'); raise SystemExit(3)")
    shell.job("python train.py")
    failed = shell.stoker("run", "--keep-failed", "30m", code=3)
    assert shell.facts("job-1")["kept_until"]
    assert "stoker exec job-1 -- COMMAND" in failed.stderr
    assert "stoker release job-1" in failed.stderr
    assert shell.stoker("exec", "job-1", "--", "cat", "clue").stdout == "x is nan"
    assert "node kept" in shell.stoker("ps").stdout
    assert "kept for 2" in shell.stoker("show", "job-1").stdout
    refused = shell.refused("rm", "job-1", "--yes")
    assert refused["cause"] == Cause.NODE_KEPT and "stoker release job-1" in refused["hint"]
    shell.kill_server()
    assert shell.stoker("exec", "job-1", "--", "cat", "clue").stdout == "x is nan", "the next server keeps it too"
    shell.stoker("release", "job-1")
    shell.wait_for(lambda: not list((shell.home / "nodes").iterdir()), "the node to be gone")
    assert shell.facts("job-1")["kept_until"] is None
    assert shell.refused("release", "job-1")["cause"] == Cause.NO_KEPT_NODE
    refused = shell.refused("exec", "job-1", "--", "ls")
    assert refused["cause"] == Cause.NO_NODE and refused["hint"]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    time.sleep(0.02)
    return True

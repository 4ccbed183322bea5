"""A script can write whatever its node can. Whatever it forges harms its own run at most."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from shell import Shell

from stoker.model.cause import Cause

# What a script knows about its place: the store is a folder that it can write to, as a node can write to its own part
# of any store. It forges until it is asked to stop, or forever.
FORGER = """
    import json, os, sys, time
    from pathlib import Path

    key = os.environ["STOKER_NODE_KEY"]
    run_id, _, attempt = key.rpartition("-")
    home = next(one for one in Path.cwd().parents if (one / "nodes").is_dir())
    mine = home / "store" / "runs" / run_id / "attempts" / attempt
    stop = Path(sys.argv[2]) if len(sys.argv) > 2 else None

    def put(path, data):
        part = path.with_name(".part-forged")
        part.write_bytes(data)
        part.replace(path)

    def changed(how):
        report = mine / "node-0" / "report.json"
        try:
            said = json.loads(report.read_bytes())
        except ValueError:
            return
        if "forged" not in said:
            put(report, json.dumps(how(said) | {"forged": True}).encode())

    def naive(said):
        zone = "+00:00"
        return {name: value.replace(zone, "") if isinstance(value, str) else value for name, value in said.items()}

    def listed(said):
        return said | {"metrics": {"loss": {"last": [1], "least": 0, "most": 1, "count": 1, "step": None}}}

    def escapes(said):
        return said | {"metrics": {"\\x1b]0;title\\x07\\n2026-01-01 INFO forged line\\x9b31m\\u202e": 1.0}}

    FORGE = {
        "escapes": lambda: changed(escapes),
        "naive": lambda: changed(naive),
        "list": lambda: changed(listed),
        "nothing": lambda: put(mine / "node-0" / "report.json", b""),
        "pipe": lambda: (mine / "node-0" / "report.json").unlink() or os.mkfifo(mine / "node-0" / "report.json"),
    }
    print("forging", flush=True)
    while not (stop and stop.exists()):
        try:
            FORGE[sys.argv[1]]()
        except FileNotFoundError:
            pass
        time.sleep(0.002)
    print("done", flush=True)
"""
INNOCENT = """
    import pathlib, time
    for step in range(5):
        print(f'{{"step": {step}, "loss": {1 / (step + 1)}}}', flush=True)
        time.sleep(0.1)
    pathlib.Path("outputs/done.txt").write_text("42")
"""


def begin(shell: Shell, name: str, run: str, script: str) -> None:
    shell.write("train.py", script)
    shell.job(run, name=name)
    shell.stoker("run", "--detach")


def begin_forging(shell: Shell, how: str) -> Path:
    """The forger, once the server has seen what it forged. The file that stops it."""
    stop = shell.folder.parent / "stop"
    begin(shell, "forger", f"python train.py {how} {stop}", FORGER)
    shell.wait_for(lambda: "cannot be used" in shell.facts("forger-1")["reason"], "the forged report to be seen")
    return stop


def innocent_ends_well(shell: Shell) -> None:
    begin(shell, "innocent", "python train.py", INNOCENT)
    facts = shell.ended("innocent-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1)
    folder = Path(shell.wait_for(lambda: shell.facts("innocent-1")["landed"], "the outputs"))
    assert (folder / "done.txt").read_text() == "42"


def failed_rounds(shell: Shell) -> int:
    return (shell.home / "server.log").read_text().count("a round failed")


@pytest.mark.parametrize("how", ["naive", "list", "nothing"])
def test_a_forged_report_breaks_only_its_own_run(shell: Shell, how: str) -> None:
    stop = begin_forging(shell, how)
    innocent_ends_well(shell)
    shown = shell.stoker("ps")
    assert "forger-1" in shown.stdout and "innocent-1" in shown.stdout
    assert "forger-1: " in shown.stderr
    assert shell.facts("forger-1")["cause"] == Cause.REPORT_UNUSABLE
    explained = json.loads(shell.stoker("explain", "forger-1", "--json").stdout)
    assert explained["cause"] == Cause.REPORT_UNUSABLE
    assert "report-refused" in {one["kind"] for one in events(shell, "forger-1")}
    stop.touch()  # an agent's next report counts again
    assert shell.ended("forger-1")["state"] == "succeeded"
    assert failed_rounds(shell) == 0


def test_what_a_node_says_acts_nowhere_in_the_servers_own_log(shell: Shell) -> None:
    begin_forging(shell, "escapes").touch()
    log = (shell.home / "server.log").read_text()
    assert "metrics.\\x1b]0;title" in log
    assert [line for line in log.splitlines() if not line.isprintable()] == []
    assert not re.search("^2026-01-01 INFO forged line", log, re.MULTILINE)


def test_a_run_whose_report_is_forged_can_be_cancelled_also_after_a_restart(shell: Shell) -> None:
    begin_forging(shell, "naive")
    shell.kill_server()
    innocent_ends_well(shell)
    shell.stoker("cancel", "forger-1")
    facts = shell.ended("forger-1")
    assert facts["state"] == "cancelled"
    shell.wait_for(lambda: not shell.agents(), "the node to be released")
    assert shell.stoker("cleanup").stderr.startswith("0 resources left")


def test_cleanup_says_which_run_it_cannot_vouch_for_and_fails(shell: Shell) -> None:
    stop = begin_forging(shell, "naive")
    done = shell.stoker("cleanup", code=1)
    assert "resources left" not in done.stderr
    assert "run forger-1 is stuck" in done.stderr
    assert "stoker cancel forger-1" in done.stderr
    told = json.loads(shell.stoker("cleanup", "--json", code=1).stdout)
    assert [one["run"] for one in told["troubled"]] == ["forger-1"]
    stop.touch()
    shell.ended("forger-1")
    shell.wait_for(lambda: shell.stoker("cleanup", code=None).returncode == 0, "nothing to be left")


def test_cleanup_says_which_provider_it_could_not_ask_and_fails(shell: Shell) -> None:
    shell.stoker("ps")
    (shell.home / "nodes").write_text("no folder, so that looking for nodes in it fails")
    done = shell.stoker("cleanup", code=1)
    assert "resources left" not in done.stderr
    told = json.loads(shell.stoker("cleanup", "--json", code=1).stdout)
    assert [one["provider"] for one in told["unseen"]] == ["local"]
    (shell.home / "nodes").unlink()
    assert shell.stoker("cleanup").stderr == "0 resources left, $0.00/h\n"


def test_nobody_waits_for_a_pipe_in_the_place_of_a_report(shell: Shell) -> None:
    stop = shell.folder.parent / "stop"
    begin(shell, "forger", f"python train.py pipe {stop}", FORGER)
    shell.wait_for(lambda: "forging" in shell.stoker("logs", "forger-1", "--raw", code=None).stdout, "its first line")
    innocent_ends_well(shell)
    shell.stoker("cancel", "forger-1")
    assert shell.ended("forger-1")["state"] == "cancelled"


def events(shell: Shell, run: str) -> list[dict[str, Any]]:
    return list(json.loads(shell.stoker("show", run, "--json").stdout)["events"])


@contextmanager
def forged_manifest(shell: Shell, entry: dict[str, Any]) -> Iterator[None]:
    """The holder of the node's access to the store writes the last manifest of the outputs."""
    over = threading.Event()

    def forge() -> None:
        while not over.wait(0.001):
            for manifest in (shell.home / "store" / "runs").glob("*/attempts/1/outputs-0.json"):
                part = manifest.with_name(".part-forged")
                part.write_text(json.dumps({"entries": [entry]}))
                part.replace(manifest)

    thread = threading.Thread(target=forge)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.parametrize("path", [5, "../../escaped"])
def test_outputs_with_a_forged_path_do_not_land_and_are_not_tried_for_ever(shell: Shell, path: object) -> None:
    with forged_manifest(shell, {"path": path, "sha256": "0" * 64, "size_bytes": 1}):
        begin(shell, "forger", "python train.py", INNOCENT)
        assert shell.ended("forger-1")["state"] == "succeeded"
        facts = shell.wait_for(
            lambda: facts if (facts := shell.facts("forger-1"))["land_problem"] else None, "what landing came to"
        )
    assert "outputs of attempt 1" in facts["land_problem"]
    assert [one["kind"] for one in events(shell, "forger-1")].count("landing-failed") == 1
    assert shell.refused("fetch", "forger-1", code=125)["code"] == "malformed"
    assert not (shell.folder.parent / "escaped").exists() and not Path("/tmp/escaped").exists()
    innocent_ends_well(shell)


LINES = """
    import os
    from pathlib import Path

    run_id, _, attempt = os.environ["STOKER_NODE_KEY"].rpartition("-")
    home = next(one for one in Path.cwd().parents if (one / "nodes").is_dir())
    mine = home / "store" / "runs" / run_id / "attempts" / attempt
    bad = b'nonsense\\n[1]\\n{"at": "2026-01-01T00:00:00", "kind": 5, "text": {}}\\n{}\\n\\n' + b"[" * 100_000 + b"\\n"
    with (mine / "node-0" / "events.jsonl").open("ab") as events:
        events.write(bad)
    with (mine / "metrics-0.jsonl").open("ab") as metrics:
        metrics.write(bad + b'{"at": 1e400, "rank": 0, "values": {}}\\n{"at": 1.5, "rank": 0, "values": {"x": [1]}}\\n')
        metrics.write(b'{"at": 1.5, "rank": 0, "step": 3, "values": {"forged": 0.5, "worse": null}}\\n')
    logs = mine / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "nonsense.log").write_text("x")
    with (logs / "0.times").open("ab") as times:
        times.write(bad)
    print("written", flush=True)
"""


def test_bad_lines_are_left_out_and_reported(shell: Shell) -> None:
    begin(shell, "forger", "python train.py", LINES)
    shell.ended("forger-1")
    told = [one["text"] for one in events(shell, "forger-1") if one["kind"] == "events-unreadable"]
    assert len(told) == 1 and "attempt 1" in told[0]
    shown = json.loads(shell.stoker("show", "forger-1", "--plot", "forged", "--json").stdout)
    assert [(one["step"], one["values"]["forged"]) for one in shown["points"]] == [(3, 0.5)]
    assert "written" in shell.stoker("logs", "forger-1", "--since", "1h", "--raw").stdout
    for command in (["ps", "-a"], ["show", "forger-1"], ["explain", "forger-1"], ["receipt", "forger-1"]):
        shell.stoker(*command)
    innocent_ends_well(shell)

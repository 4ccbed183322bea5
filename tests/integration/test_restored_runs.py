"""A lost database is rebuilt from signed records. Nothing else in a store starts a run."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

from shell import Shell

from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.run.run import Run, RunState
from stoker.model.workspace import layout
from stoker.server.records.tables import DatasetRecord
from stoker.stores import signing
from stoker.stores.folder.store import FolderStore

# Works until a file allows it to end.
WORKS = """
    import pathlib, sys, time
    print("begun", flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.05)
    print("done", flush=True)
    pathlib.Path("outputs/done.txt").write_text("42")
"""


def start(shell: Shell) -> Path:
    """Returns the file whose existence lets the run end."""
    go = shell.folder.parent / "go"
    shell.write("train.py", WORKS)
    shell.job(f"python train.py {go}")
    shell.stoker("run", "--detach")
    shell.wait_for(lambda: shell.stoker("logs", "job-1").stdout == "begun\n", "its first line")
    return go


def lose_database(shell: Shell) -> None:
    shell.kill_server()
    shell.wait_for(lambda: shell.server_pid() not in shell.processes(), "the server to be gone")
    for ending in ("-wal", "-shm"):
        (shell.home / f"stoker.db{ending}").unlink(missing_ok=True)
    (shell.home / "stoker.db").write_bytes(b"not a database at all" * 500)


def store(shell: Shell) -> FolderStore:
    return FolderStore(shell.home / "store")


def record(shell: Shell, run_id: str) -> Run:
    return wire.load(Run, store(shell).get(layout.record(run_id)).partition(b"\n")[2])


def told(shell: Shell) -> str:
    return shell.stoker("server", "status").stdout


def names(shell: Shell) -> list[str]:
    return sorted(one["name"] for one in json.loads(shell.stoker("ps", "-a", "--json").stdout)["runs"])


def test_a_run_under_way_is_followed_to_its_end_after_the_database_was_lost(shell: Shell) -> None:
    go = start(shell)
    lose_database(shell)
    assert shell.facts("job-1")["state"] == "running"
    go.touch()
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1), facts
    assert shell.stoker("logs", "job-1").stdout == "begun\ndone\n"
    landed = Path(shell.wait_for(lambda: shell.facts("job-1")["landed"], "its outputs"))
    assert (landed / "done.txt").read_text() == "42"


def test_nothing_that_waited_is_started_after_the_database_was_lost(shell: Shell) -> None:
    shell.environ["STOKER_SLOTS"] = "1"
    go = start(shell)
    shell.job("echo it ran")
    shell.stoker("run", "--detach")
    assert shell.facts("job-2")["state"] == "queued"
    lose_database(shell)
    waited = shell.facts("job-2")
    assert (waited["state"], waited["attempts"]) == ("failed", []), waited
    assert waited["cause"] == Cause.RESTORED
    go.touch()
    assert shell.ended("job-1")["state"] == "succeeded"
    assert shell.facts("job-2") == waited
    assert shell.stoker("rerun", "job-2").stdout == "it ran\n", "only a person starts it again"


def test_a_run_whose_agent_died_with_the_database_is_not_started_again(shell: Shell) -> None:
    start(shell)
    agents = shell.agents()
    lose_database(shell)
    for pid in agents:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("failed", 1), facts
    assert facts["cause"] == Cause.RESTORED and "stoker rerun job-1" in facts["hint"]


def test_a_forged_record_starts_no_command_and_replaces_no_run(shell: Shell) -> None:
    """A node that runs as you can write anywhere in the folder. It has no key."""
    mark = shell.folder / "ran"
    shell.job("echo hello; echo 1 > outputs/x")
    shell.stoker("run")
    shell.stoker("run")
    genuine, other = shell.facts("job-1")["id"], shell.facts("job-2")["id"]
    run = record(shell, genuine)
    evil = wire.to_plain(run) | {"state": RunState.QUEUED, "attempts": [], "ended_at": None, "landed": ""}
    evil["job"]["run"] = f"touch {mark}"

    def forged(run_id: str, name: str) -> bytes:
        return json.dumps(evil | {"id": run_id, "name": name}).encode()

    one, two, three, four = (f"{number:020x}" for number in range(1, 5))
    held = store(shell)
    held.put(f"runs/{one}/run.json", forged(one, "old-layout"))
    held.put(layout.record(two), forged(two, "unsigned"))
    elsewhere = f"folder {layout.record(three)}"
    held.put(layout.record(three), signing.signed(signing.new_key(), forged(three, "job-1"), elsewhere))
    held.put(layout.record(four), held.get(layout.record(genuine)))  # signed, for another place
    signature = held.get(layout.record(other)).partition(b"\n")[0]
    held.put(layout.record(other), signature + b"\n" + forged(other, "job-2"))
    held.put(f"{layout.RUN_RECORDS}.json", b"?")
    lose_database(shell)
    assert names(shell) == ["job-1"]
    assert shell.facts("job-1")["id"] == genuine
    assert "5 records" in told(shell)
    shell.stoker("run")
    assert shell.facts("job-2")["state"] == "succeeded", "whatever was to be started was started by now"
    assert not mark.exists()


def test_a_forged_dataset_record_replaces_no_version(shell: Shell) -> None:
    for name in ("ants", "bees"):
        (shell.folder / name).mkdir()
        (shell.folder / name / "a.jpg").write_text(name)
        shell.stoker("data", "put", name, "--name", name)
    before = json.loads(shell.stoker("data", "ls", "--json").stdout)
    held = store(shell)
    genuine = held.get(layout.dataset_record("ants"))
    forged = wire.load(DatasetRecord, genuine.partition(b"\n")[2])
    plain = wire.to_plain(forged)
    plain["versions"][0]["id"] = "0" * 64
    held.put(layout.dataset_record("antz"), json.dumps(plain).encode())
    held.put(layout.dataset_record("copy"), genuine)
    lose_database(shell)
    assert json.loads(shell.stoker("data", "ls", "--json").stdout) == before
    assert "2 records" in told(shell)


def test_a_database_is_not_rebuilt_without_the_key_of_its_records(shell: Shell) -> None:
    """As with a locked system keyring: it would be rebuilt empty."""
    shell.environ["STOKER_KEYCHAIN"] = "file"
    shell.job("echo hello")
    shell.stoker("run")
    lose_database(shell)
    keys = shell.home / "credentials.json"
    kept = keys.read_bytes()
    keys.unlink()
    done = shell.stoker("ps", code=None)
    assert done.returncode and "signing key" in done.stderr
    assert (shell.home / "stoker.db").read_bytes().startswith(b"not a database")
    keys.write_bytes(kept)
    assert names(shell) == ["job-1"]

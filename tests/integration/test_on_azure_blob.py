"""Whole runs whose workspace is in Azure Blob or S3: everything that works in a folder works there, faults included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from blobservice import BlobService
from shell import Shell

from services import KEY, Azurite, S3Server
from stoker.errors import StoreDenied
from stoker.model.workspace import layout
from stoker.stores.access import Access, Route
from stoker.stores.kinds import grant
from stoker.stores.opening import open_access, open_store

# Prints numbered lines for some seconds, and leaves a file that shows that it finished.
COUNTER = """
    import pathlib, time
    for n in range({lines}):
        print(f"line {{n}}", flush=True)
        time.sleep(0.1)
    pathlib.Path("outputs/done.txt").write_text("42")
"""

# Goes on from the last step it saved; its result depends on every step having been done once, in order.
RESUMES = """
    import json, os, pathlib, time
    state = pathlib.Path("checkpoints/state.json")
    step, total = json.loads(state.read_text()) if state.exists() else (0, 1)
    print("begins at", step, flush=True)
    while step < {steps}:
        step, total = step + 1, (total * 31 + step) % 1_000_003
        part = state.with_suffix(".part")
        part.write_text(json.dumps([step, total]))
        part.replace(state)
        print("step", step, flush=True)
        time.sleep(0.1)
    pathlib.Path("outputs/total.txt").write_text(str(total))
"""


def total(steps: int) -> str:
    step, result = 0, 1
    while step < steps:
        step, result = step + 1, (result * 31 + step) % 1_000_003
    return str(result)


def use(shell: Shell, url: str, secret: str) -> None:
    process = shell.start("store", "add", "far", url, "--use", "--json", stdin=subprocess.PIPE)
    out, err = process.communicate(secret, timeout=60)
    assert process.returncode == 0, out + err


# What differs between the two is in the stores' contract: here one of them is enough in a hurry.
mostly_azure = pytest.mark.parametrize("far", ["azure", pytest.param("s3", marks=pytest.mark.slow)], indirect=True)


@pytest.fixture(params=["azure", "s3"])
def far(request: pytest.FixtureRequest, shell: Shell) -> Shell:
    """A shell whose new runs are kept far away."""
    if request.param == "azure":
        azurite: Azurite = request.getfixturevalue("azurite")
        use(shell, azurite.new_container(), KEY)
    else:
        server: S3Server = request.getfixturevalue("s3_server")
        use(shell, server.new_bucket(), "stoker:not-a-secret")
    return shell


@pytest.fixture
def service(tmp_path: Path) -> Iterator[BlobService]:
    (tmp_path / "service").mkdir()
    with BlobService(tmp_path / "service") as running:
        yield running


def lines(count: int) -> str:
    return "".join(f"line {n}\n" for n in range(count))


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def landed(shell: Shell, run: str) -> Path:
    return Path(shell.wait_for(lambda: shell.facts(run)["landed"], "the outputs"))


def started(shell: Shell, run: str, attempt: int = 1) -> None:
    def running() -> bool:
        facts = shell.facts(run)
        return facts["state"] == "running" and len(facts["attempts"]) == attempt

    shell.wait_for(running, f"attempt {attempt} of {run}")


def kept(shell: Shell, run: str) -> int:
    """How many checkpoints the store has of it."""
    from stoker.client.api.client import Client
    from stoker.client.settings import from_environment

    connection = Client.connect(from_environment(shell.environ)).connection
    return len(connection.get(f"/v1/runs/{run}/checkpoints")["sets"])


def test_a_run_is_followed_live_and_its_outputs_land(far: Shell) -> None:
    far.write("train.py", COUNTER.format(lines=80))
    far.job("python train.py")
    with far.start("run", stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        first = process.stdout.readline()
        assert far.facts("job-1")["state"] in ("starting", "running"), "the first line came while it ran"
        rest = process.stdout.read()  # `communicate` would lose what came together with the first line
    assert process.returncode == 0
    assert first + rest == lines(80)
    assert (landed(far, "job-1") / "done.txt").read_text() == "42"
    assert far.stoker("logs", "job-1").stdout == lines(80)
    assert not (far.home / "store" / "runs").exists(), "nothing of it is in the folder"


@mostly_azure
def test_a_cancelled_run_ends_soon_and_removing_it_leaves_nothing(far: Shell) -> None:
    far.write("train.py", COUNTER.format(lines=3000))
    far.job("python train.py")
    far.stoker("run", "--detach")
    started(far, "job-1")
    run = far.facts("job-1")["id"]
    far.stoker("cancel", "job-1")
    assert far.ended("job-1")["state"] == "cancelled"
    far.stoker("rm", "job-1", "--yes")
    store = open_store(*opened(far))
    assert list(store.list(layout.run(run).rstrip("/"))) == []
    assert far.stoker("ps").stdout == ""


@mostly_azure
def test_an_evicted_run_resumes_exactly_where_it_was(far: Shell) -> None:
    far.write("train.py", RESUMES.format(steps=120))
    far.job("python train.py")
    far.stoker("run", "--detach")
    started(far, "job-1")
    far.wait_for(lambda: "step 10\n" in far.stoker("logs", "job-1").stdout, "ten steps")
    far.stoker("evict", "job-1", "--notice", "4s")
    facts = far.ended("job-1")
    assert facts["state"] == "succeeded", facts
    assert [one["state"] for one in facts["attempts"]] == ["evicted", "ended"]
    begins = far.stoker("logs", "job-1", "--attempt", "2").stdout.splitlines()[0]
    assert int(begins.removeprefix("begins at ")) >= 10, "it went on from its last checkpoint"
    assert (landed(far, "job-1") / "total.txt").read_text() == total(120)


@mostly_azure
def test_a_killed_agent_costs_an_attempt_and_no_line_that_was_printed(far: Shell) -> None:
    far.write("train.py", RESUMES.format(steps=60))
    far.job("python train.py")
    far.stoker("run", "--detach")
    started(far, "job-1")
    far.wait_for(lambda: kept(far, "job-1"), "a checkpoint")
    for pid in far.agents():
        kill(pid)
    facts = far.ended("job-1")
    assert facts["state"] == "succeeded", facts
    assert [one["state"] for one in facts["attempts"]] == ["lost", "ended"]
    first = far.stoker("logs", "job-1", "--attempt", "1").stdout.splitlines()
    second = far.stoker("logs", "job-1", "--attempt", "2").stdout.splitlines()
    resumed = int(second[0].removeprefix("begins at "))
    assert 0 < resumed <= int(first[-1].removeprefix("step ")), "what was saved was printed, and is in the store"
    assert (landed(far, "job-1") / "total.txt").read_text() == total(60)


@mostly_azure
def test_a_killed_server_costs_nothing(far: Shell) -> None:
    far.write("train.py", COUNTER.format(lines=40))
    far.job("python train.py")
    far.stoker("run", "--detach")
    started(far, "job-1")
    far.kill_server()
    time.sleep(1)
    far.stoker("ps")
    facts = far.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1)
    assert far.stoker("logs", "job-1").stdout == lines(40)
    assert (landed(far, "job-1") / "done.txt").read_text() == "42"


def opened(shell: Shell) -> tuple[str, Any]:
    """The URL and the credential of the store that is far."""
    from stoker.stores.access import Credential

    url = next(
        one["url"] for one in json.loads(shell.stoker("store", "ls", "--json").stdout)["stores"] if one["workspace"]
    )
    return url, Credential.from_text(json.loads((shell.home / "credentials.json").read_text())["store far"])


def test_a_run_outlives_its_token(shell: Shell, azurite: Azurite) -> None:
    """Tokens that live for four seconds, a run that lives for twelve, and a server that is down in between."""
    shell.environ["STOKER_ACCESS_LIFE"] = "4"
    use(shell, azurite.new_container(), KEY)
    shell.write("train.py", COUNTER.format(lines=120))
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    started(shell, "job-1")
    first = Access.from_text((next((shell.home / "nodes").iterdir()) / "access").read_text())

    def renewed() -> bool:
        with suppress(OSError, StopIteration):
            now = Access.from_text((next((shell.home / "nodes").iterdir()) / "access").read_text())
            return now.expires_at > first.expires_at
        return False

    shell.wait_for(renewed, "another token")
    shell.wait_for(lambda: time.time() > first.expires_at + 1, "the end of the first token")
    with pytest.raises(StoreDenied):
        open_access(first).get(layout.report(shell.facts("job-1")["id"], 1))
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1), facts
    assert shell.stoker("logs", "job-1").stdout == lines(120)
    assert (landed(shell, "job-1") / "done.txt").read_text() == "42"


@pytest.mark.slow
def test_a_run_whose_token_ended_while_no_server_was_there_catches_up(shell: Shell, azurite: Azurite) -> None:
    shell.environ["STOKER_ACCESS_LIFE"] = "4"
    use(shell, azurite.new_container(), KEY)
    shell.write("train.py", COUNTER.format(lines=100))
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    started(shell, "job-1")
    shell.kill_server()
    time.sleep(7)  # the token has ended, and so has the time in which the server would have renewed it
    shell.stoker("ps")
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1), facts
    assert shell.stoker("logs", "job-1").stdout == lines(100)


@pytest.mark.slow
def test_a_sas_that_is_replaced_in_time_costs_nothing(shell: Shell, azurite: Azurite) -> None:
    """A SAS cannot be restricted: nodes have it, and get the next one when it is added."""
    url = azurite.new_container()
    use(shell, url, azurite.sas(url, for_s=25).values["token"])
    shell.write("train.py", COUNTER.format(lines=300))
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    started(shell, "job-1")
    use(shell, url, azurite.sas(url).values["token"])
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1), facts
    assert shell.stoker("logs", "job-1").stdout == lines(300)


@pytest.mark.heavy
def test_a_sas_that_has_ended_is_reported_and_costs_no_attempt(shell: Shell, azurite: Azurite) -> None:
    url = azurite.new_container()
    use(shell, url, azurite.sas(url, for_s=30).values["token"])
    shell.write("train.py", COUNTER.format(lines=3000))
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    started(shell, "job-1")

    def told() -> str:
        run = json.loads(shell.stoker("ps", "--json").stdout)["runs"][0]
        return str(run["reason"])

    shell.wait_for(lambda: "its store failed" in told(), "a word about it", patience_s=90)
    assert "expired" in told() or "ended" in told()
    assert "sig=" not in told()
    assert shell.agents(), "the script goes on"


def test_the_token_of_a_run_opens_no_other_run(azurite: Azurite) -> None:
    """`test_node_tokens` tries everything that an active run has; here is the content of a single token."""
    url = azurite.new_container()
    store = open_store(url, azurite.account_key)
    one, other = "aaaaaaaaaaaa00000001", "bbbbbbbbbbbb00000002"
    mine, theirs, code = layout.wishes(one, 1), layout.wishes(other, 1), layout.code("c" * 64)
    for key, data in ((mine, b"mine"), (theirs, b"theirs"), (code, b"code"), (layout.code("d" * 64), b"other code")):
        store.put(key, data)
    access = grant(url, azurite.account_key, reads=[code], writes=[layout.run(one)], for_s=60)
    writing = next(route for route in access.routes if route.writes)
    node = open_access(access)
    assert node.get(mine) == b"mine"
    assert node.get(code) == b"code"
    # A node that is up to no good builds its own routes: the service itself has to refuse them.
    there = writing.url.replace(one, other)
    assert there != writing.url
    forged = open_access(Access((Route(layout.run(other), there, writing.token, True),)))
    reading = next(route for route in access.routes if not route.writes)
    base = open_access(Access((Route(layout.CODE, reading.url.rpartition("/")[0], reading.token, True),)))
    attempts: list[Callable[[], object]] = [
        lambda: forged.get(theirs),
        lambda: forged.put(theirs, b"changed"),
        lambda: forged.put(layout.run(other) + "new", b"x"),
        lambda: forged.delete(theirs),
        lambda: list(forged.list(layout.run(other))),
        lambda: node.get(theirs),
        lambda: node.put(code, b"changed"),
        lambda: node.list(layout.CODE).__next__(),
        lambda: base.put(code, b"changed"),
        lambda: base.delete(code),
        lambda: base.get(layout.code("d" * 64)),
        lambda: list(base.list(layout.CODE)),
    ]
    for attempt in attempts:
        with pytest.raises(StoreDenied):
            attempt()
    assert base.get(code) == b"code"
    assert store.get(theirs) == b"theirs"


def test_a_run_continues_while_its_store_is_unavailable_and_catches_up(shell: Shell, service: BlobService) -> None:
    use(shell, service.azurite.new_container(), KEY)
    shell.write("train.py", RESUMES.format(steps=120))
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    started(shell, "job-1")
    shell.wait_for(lambda: "step 5\n" in shell.stoker("logs", "job-1").stdout, "five steps")
    service.stop()
    shell.wait_for(lambda: "is unreachable" in shell.facts("job-1")["reason"], "a word about it", patience_s=90)
    time.sleep(6)
    assert shell.facts("job-1")["state"] == "running"
    service.start()
    facts = shell.ended("job-1")
    assert (facts["state"], len(facts["attempts"])) == ("succeeded", 1), facts
    printed = shell.stoker("logs", "job-1").stdout.splitlines()
    assert printed == ["begins at 0", *(f"step {n}" for n in range(1, 121))]
    assert (landed(shell, "job-1") / "total.txt").read_text() == total(120)


@pytest.mark.slow
def test_a_run_that_ends_while_its_store_is_away_ends_rightly(shell: Shell, service: BlobService) -> None:
    use(shell, service.azurite.new_container(), KEY)
    shell.write("train.py", COUNTER.format(lines=30))
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    started(shell, "job-1")
    service.stop()
    time.sleep(5)
    for pid in shell.agents():
        kill(pid)  # the script has ended; what it left waits on the node
        break
    service.start()
    facts = shell.ended("job-1")
    assert facts["state"] == "succeeded", facts
    assert (landed(shell, "job-1") / "done.txt").read_text() == "42"


@pytest.mark.heavy
def test_a_short_run_costs_few_requests(shell: Shell, service: BlobService) -> None:
    """Each is paid for. The figures are in the guide on stores."""
    use(shell, service.azurite.new_container(), KEY)
    shell.job("echo hello; echo 1 > outputs/x")
    shell.stoker("run")
    before = service.requests()
    shell.stoker("run")
    asked = service.requests() - before
    assert asked.total() <= 90, asked
    shell.write("train.py", "import time; time.sleep(15)")
    shell.job("python train.py")
    shell.stoker("run", "--detach")
    started(shell, "job-3")
    time.sleep(4)
    before = service.requests()
    time.sleep(8)
    quiet = service.requests() - before
    assert quiet.total() <= 16, quiet

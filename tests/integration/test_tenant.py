"""A billed machine removes itself when its lease is not renewed: real agents, a real token and deletion."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agentnode import CLOUD, RUN, Node, eventually

from stoker.agent.checkpoints.sets import is_fenced
from stoker.agent.machine.incarnation import take_over
from stoker.errors import Missing
from stoker.model.node import Lease
from stoker.model.orders import Orders, Wish, Wishes
from stoker.model.run.money import Fuse
from stoker.model.run.report import Outcome, Phase
from stoker.model.run.run import Event
from stoker.model.snapshot import CheckpointSet, Snapshot
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.providers.azure.booting import BOOT, CONFIG, Boot, custom_data
from stoker.stores.access import Access, Route
from stoker.stores.sealing import seal
from stoker.stores.signing import new_key, signed

TRAINING = """
    import time
    print("training", flush=True)
    time.sleep(300)
"""


class Cloud:
    """Returns tokens and accepts deletions; it refuses the first two."""

    def __init__(self) -> None:
        self.deletions: list[str] = []
        self.posts: list[str] = []
        self.locked = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                good = self.headers.get("Metadata") == "true"
                self._answer(200 if good else 400, {"access_token": "t0ken", "expires_in": "3600"})

            def do_DELETE(self) -> None:
                outer.deletions.append(f"{self.path} {self.headers.get('Authorization')}")
                if outer.locked:
                    return self._answer(409, {"error": {"code": "ScopeLocked"}})
                return self._answer(503 if len(outer.deletions) < 2 else 202, {})

            def do_POST(self) -> None:
                outer.posts.append(f"{self.path} {self.headers.get('Authorization')}")
                self._answer(202, {})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    made = Cloud()
    yield made
    made.server.shutdown()


def move_in(node: Node, cloud: Cloud, lease_s: float, **changed: Any) -> subprocess.Popen[bytes]:
    config = {
        "store": node.store.url,
        "orders": layout.orders(RUN, node.attempt),
        "lease_s": lease_s,
        "release": {
            "url": f"{cloud.url}/group",
            "token_url": f"{cloud.url}/token",
            "instead_url": f"{cloud.url}/deallocate",
        },
        "arguments": {"--folder": str(node.folder), "--environments": str(node.environments), "--cloud": CLOUD},
        "variables": {"STOKER_NODE_KEY": node.key},
        **changed,
    }
    path = node.root / "node.json"
    path.write_text(json.dumps(config))
    command = [sys.executable, "-I", "-S", str(node.agent), "tenant", "--config", str(path)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def renew(node: Node, number: int, seconds: float) -> None:
    node.store.put(layout.lease(RUN, node.attempt), dump(Lease(number, seconds)))


def test_a_node_whose_lease_is_not_renewed_saves_reports_and_removes_itself(node: Node, cloud: Cloud) -> None:
    files = {"train.py": TRAINING}
    node.order("python train.py", files)
    tenant = move_in(node, cloud, 4.0)
    assert tenant.wait(60) == 0
    report = node.report()
    assert report.phase is Phase.DONE
    assert report.outcome is Outcome.EVICTED
    assert not report.stays
    assert cloud.deletions == ["/group Bearer t0ken", "/group Bearer t0ken"], "a refused deletion is tried again"
    assert "training" in node.store.get(layout.log(RUN, 1, 0)).decode()


def test_a_node_stays_as_long_as_its_lease_is_renewed(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    renew(node, 1, 600.0)
    tenant = move_in(node, cloud, 1.0)
    try:
        node.prints(b"training")
        with pytest.raises(subprocess.TimeoutExpired):
            tenant.wait(3)
        assert cloud.deletions == []
        renew(node, 2, 0.0)
        assert tenant.wait(60) == 0
        assert cloud.deletions
    finally:
        tenant.kill()


def test_a_machine_whose_run_has_ended_waits_for_its_removal_until_the_lease_is_over(node: Node, cloud: Cloud) -> None:
    node.order("true")
    tenant = move_in(node, cloud, 3.0)
    node.reaches(Phase.DONE)
    assert tenant.poll() is None
    assert cloud.deletions == []
    assert tenant.wait(60) == 0
    assert cloud.deletions


def test_a_machine_without_a_run_removes_itself_long_before_its_lease_expires(node: Node, cloud: Cloud) -> None:
    node.order("true")
    renew(node, 1, 600.0)
    tenant = move_in(node, cloud, 600.0, idle_s=2.0)
    node.reaches(Phase.DONE)
    assert tenant.wait(30) == 0
    assert cloud.deletions


def test_a_machine_without_a_run_stays_as_long_as_its_server_is_there(node: Node, cloud: Cloud) -> None:
    node.order("true")
    tenant = move_in(node, cloud, 600.0, idle_s=2.0)
    try:
        node.reaches(Phase.DONE)
        for number in range(1, 9):
            renew(node, number, 600.0)
            with pytest.raises(subprocess.TimeoutExpired):
                tenant.wait(0.5)
        assert cloud.deletions == []
        assert tenant.wait(30) == 0
        assert cloud.deletions
    finally:
        tenant.kill()


def test_a_working_machine_stays_without_contact_until_its_lease_expires(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    tenant = move_in(node, cloud, 600.0, idle_s=0.5)
    try:
        node.prints(b"training")
        with pytest.raises(subprocess.TimeoutExpired):
            tenant.wait(3)
        assert cloud.deletions == []
    finally:
        tenant.send_signal(signal.SIGTERM)
        tenant.wait(30)


def test_a_machine_that_is_shut_down_is_not_removed(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    tenant = move_in(node, cloud, 600.0)
    node.prints(b"training")
    tenant.send_signal(signal.SIGTERM)
    tenant.wait(60)
    assert cloud.deletions == []
    assert node.report().outcome is Outcome.EVICTED
    assert node.report().stays, "the machine may be there again in a moment"
    assert node.processes() == []


def test_a_machine_that_may_not_be_deleted_is_switched_off_for_good(node: Node, cloud: Cloud) -> None:
    cloud.locked = True
    node.order("true")
    assert move_in(node, cloud, 2.0).wait(60) == 0
    assert cloud.posts == ["/deallocate Bearer t0ken"]


LOOKS_AROUND = """
    import glob, os
    seen = 0
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            text = open(path, "rb").read()
        except OSError:
            continue
        if os.environ["STOKER_NODE_KEY"].encode() in text:
            seen += 1
            for word in (b"STOKER_ACCESS", b"STOKER_SEAL", b"t0ken-of-the-run"):
                if word in text:
                    print("found", word, "in", path)
    print("looked at several" if seen > 1 else "saw nothing")
    print(os.environ["MY_SECRET"][:2])
"""


def test_the_access_of_a_machine_is_in_the_environment_of_no_process(node: Node, cloud: Cloud) -> None:
    node.order("python look.py", {"look.py": LOOKS_AROUND}, secrets=["MY_SECRET"])
    access = Access((Route("", node.store.url, "t0ken-of-the-run", True),), time.time() + 3600).to_text()
    given = {"STOKER_ACCESS": access, "STOKER_SEAL": new_key(), "MY_SECRET": "hush"}
    orders = layout.orders(RUN, node.attempt)
    node.store.put(orders, signed(given["STOKER_SEAL"], node.store.get(orders), orders))
    tenant = move_in(node, cloud, 600.0, variables={"STOKER_NODE_KEY": node.key, **given})
    try:
        node.prints(b"hu\n")
        assert node.log() == b"looked at several\nhu\n"
        node.reaches(Phase.DONE)
    finally:
        tenant.kill()


def test_what_is_secret_waits_in_the_store_sealed_and_is_on_no_disk_of_the_machine(node: Node, cloud: Cloud) -> None:
    """The orders arrive after the machine, which is allowed."""
    script = "import os; print('has', len(os.environ['HF_TOKEN']), flush=True)"
    node.order("python train.py", {"train.py": script}, secrets=["HF_TOKEN"])
    key, secret = new_key(), "hf-8f14e45fceea167a5a36dedd4bea2543"
    words = layout.again(RUN, node.attempt)
    given = {"orders": layout.orders(RUN, node.attempt), "spend": {}}
    given["variables"] = {"STOKER_NODE_KEY": node.key, "HF_TOKEN": secret}
    tenant = move_in(node, cloud, 30.0, sealed=True, variables={"STOKER_SEAL": key})
    try:
        node.store.put(words, seal(key, json.dumps(given), words))
        node.reaches(Phase.DONE)
        assert node.store.get(layout.log(RUN, 1, 0)) == b"has 35\n"
        assert subprocess.run(["grep", "-rlaF", secret, node.root], capture_output=True).stdout == b""
    finally:
        tenant.kill()


def test_a_machine_that_finds_nothing_to_do_in_the_store_removes_itself(node: Node, cloud: Cloud) -> None:
    node.order("true")
    other, words = new_key(), layout.again(RUN, node.attempt)
    node.store.put(words, seal(other, json.dumps({"orders": "x", "variables": {}}), words))
    tenant = move_in(node, cloud, 2.0, sealed=True, variables={"STOKER_SEAL": new_key()})
    assert tenant.wait(60) == 0
    assert cloud.deletions
    assert node.processes() == []


COUNTING = """
    import os, pathlib, time
    from pathlib import Path
    state = Path(os.environ["STOKER_CHECKPOINTS"], "step")
    step = int(state.read_text()) if state.exists() else 0
    while step < 100:
        step += 1
        print("step", step, flush=True)
        part = state.with_suffix(".part")
        part.write_text(str(step))
        part.rename(state)
        Path(os.environ["STOKER_OUTPUTS"], "model").write_text(str(step))
        time.sleep(0.1)
"""


def given(node: Node, seconds: float, ago_s: float = 0.0) -> None:
    """A lease as the server gives it."""
    at = datetime.now(UTC) - timedelta(seconds=ago_s)
    node.store.put(layout.lease(RUN, node.attempt), dump(Lease(int(at.timestamp() * 1000), seconds, at)))


def aged(node: Node, key: str, ago_s: float) -> None:
    """By the store's clock."""
    then = time.time() - ago_s
    os.utime(node.store.root / key, (then, then))


def evict(node: Node, tenant: subprocess.Popen[bytes]) -> None:
    """Without notice: everything on the machine is gone, its disk too."""
    tenant.kill()
    tenant.wait()
    for pid in node.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not node.processes(), "the processes to be gone")
    shutil.rmtree(node.folder)


def has_committed(node: Node, step: int) -> Callable[[], bool]:
    def found() -> bool:
        sets = [one.key for one in node.store.list(layout.checkpoint_sets(RUN))]
        steps = [load(CheckpointSet, node.store.get(key)).entries for key in sets]
        sizes = [entry.sha256 for entries in steps for entry in entries]
        return any(int(node.store.get(layout.checkpoint_file(RUN, one))) >= step for one in sizes if one)

    return found


def begin_and_evict(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": COUNTING})
    given(node, 600.0)
    evict_at(node, cloud, 5)


def evict_at(node: Node, cloud: Cloud, step: int) -> None:
    tenant = move_in(node, cloud, 600.0)
    eventually(has_committed(node, step), "checkpoints")
    evict(node, tenant)


def test_a_machine_that_its_provider_restored_continues_its_attempt_to_the_same_end(node: Node, cloud: Cloud) -> None:
    """The third machine finishes what the first started."""
    begin_and_evict(node, cloud)
    evict_at(node, cloud, 15)
    before, log = node.report(), node.log()
    assert before.outcome is None
    tenant = move_in(node, cloud, 600.0, idle_s=2.0)
    assert tenant.wait(60) == 0
    report = node.report()
    assert (report.outcome, report.attempt) == (Outcome.SUCCEEDED, 1)
    assert report.beat > before.beat
    assert report.started_at == before.started_at
    assert report.effort and before.effort
    assert len(report.effort.evicted_at) == 2
    assert report.effort.evicted_at[-1] - before.at < timedelta(seconds=1), "when it stopped, not when it was restored"
    assert report.effort.running_s > before.effort.running_s
    assert 0 <= report.effort.undone_s <= report.effort.running_s
    assert node.log().startswith(log), "what was printed before the eviction stands"
    again = [int(line.split()[1]) for line in node.log()[len(log) :].splitlines()]
    assert again == list(range(again[0], 101))
    assert 15 < again[0] <= int(log.splitlines()[-1].split()[1]) + 1, "from the newest checkpoint"
    assert report.log_bytes == {"0": len(node.log())}
    outputs = load(Snapshot, node.store.get(layout.outputs(RUN, 1)))
    (model,) = outputs.entries
    assert node.store.get(layout.output(RUN, model.sha256)) == b"100"
    events = [load(Event, line) for line in node.store.get(layout.events(RUN, 1)).splitlines()]
    assert [one.kind for one in events].count("machine-restored") == 2
    assert cloud.deletions, "and it removed itself"


def test_the_machine_before_a_restored_one_can_commit_nothing_more(node: Node, cloud: Cloud) -> None:
    begin_and_evict(node, cloud)
    orders = load(Orders, node.store.get(layout.orders(RUN, 1)))
    assert not is_fenced(node.store, orders)
    second = replace(orders, incarnation=take_over(node.store, orders))
    third = replace(orders, incarnation=take_over(node.store, orders))
    assert (second.incarnation, third.incarnation) == (2, 3)
    assert is_fenced(node.store, orders)
    assert is_fenced(node.store, second)
    assert not is_fenced(node.store, third)


def refused(node: Node, cloud: Cloud) -> None:
    """The restored machine removes itself at once, and reports and does nothing."""
    before = node.store.get(layout.report(RUN, 1))
    assert move_in(node, cloud, 600.0).wait(30) == 0
    assert cloud.deletions
    assert node.store.get(layout.report(RUN, 1)) == before
    assert node.processes() == []


def test_a_restored_machine_whose_lease_is_over_by_date_removes_itself(node: Node, cloud: Cloud) -> None:
    begin_and_evict(node, cloud)
    given(node, 600.0, ago_s=601.0)
    refused(node, cloud)


def test_a_restored_machine_with_a_wrong_clock_goes_by_that_of_its_store(node: Node, cloud: Cloud) -> None:
    """The lease seems to be given just now: the machine's clock is an hour behind its server's."""
    begin_and_evict(node, cloud)
    given(node, 600.0, ago_s=-3600.0)
    aged(node, layout.lease(RUN, 1), 601.0)
    refused(node, cloud)


def test_a_restored_machine_whose_run_was_cancelled_removes_itself(node: Node, cloud: Cloud) -> None:
    begin_and_evict(node, cloud)
    node.store.put(layout.wishes(RUN, 1), dump(Wishes(Wish.CANCEL)))
    refused(node, cloud)


def test_a_restored_machine_removes_itself_if_the_server_has_begun_another_attempt(node: Node, cloud: Cloud) -> None:
    begin_and_evict(node, cloud)
    node.store.put(layout.orders(RUN, 2), node.store.get(layout.orders(RUN, 1)))
    refused(node, cloud)


def test_a_restored_machine_whose_run_has_ended_removes_itself(node: Node, cloud: Cloud) -> None:
    node.order("true")
    given(node, 600.0)
    tenant = move_in(node, cloud, 600.0)
    node.reaches(Phase.DONE)
    evict(node, tenant)
    refused(node, cloud)


def test_a_restored_machine_whose_money_was_spent_while_it_was_away_removes_itself(node: Node, cloud: Cloud) -> None:
    begin_and_evict(node, cloud)
    told = Fuse(Decimal(1), Decimal(0), Decimal(1), datetime.now(UTC) - timedelta(hours=1))
    node.store.put(layout.wishes(RUN, 1), dump(Wishes(fuse=told)))
    refused(node, cloud)


@pytest.mark.heavy
def test_a_restored_machine_reckons_the_time_it_was_away_as_spent(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    given(node, 600.0)
    tenant = move_in(node, cloud, 600.0)
    node.prints(b"training")
    evict(node, tenant)
    told = Fuse(Decimal(1), Decimal(0), Decimal(1), datetime.now(UTC) - timedelta(seconds=3565))
    node.store.put(layout.wishes(RUN, 1), dump(Wishes(fuse=told)))
    started = time.monotonic()
    tenant = move_in(node, cloud, 600.0)
    assert tenant.wait(60) == 0
    assert node.report().outcome is Outcome.BUDGET_REACHED
    assert time.monotonic() - started < 45


@pytest.mark.heavy
def test_a_restored_machine_has_no_more_than_what_is_left_of_the_lease(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    given(node, 600.0)
    tenant = move_in(node, cloud, 600.0)
    node.prints(b"training")
    evict(node, tenant)
    given(node, 600.0, ago_s=565.0)
    started = time.monotonic()
    assert move_in(node, cloud, 600.0).wait(60) == 0
    assert time.monotonic() - started < 45
    assert node.report().outcome is Outcome.EVICTED
    assert node.log() == b"training\ntraining\n"


@pytest.mark.heavy
def test_a_machine_whose_predecessor_was_evicted_before_its_first_report_has_no_second_lease(
    node: Node, cloud: Cloud
) -> None:
    """Nobody has reported anything: only the age of its orders shows that they were for an earlier machine."""
    node.order("python train.py", {"train.py": TRAINING})
    aged(node, layout.orders(RUN, 1), 590.0)
    started = time.monotonic()
    assert move_in(node, cloud, 600.0).wait(60) == 0
    assert time.monotonic() - started < 45
    assert cloud.deletions
    assert node.report().outcome is Outcome.EVICTED


@pytest.mark.heavy
def test_a_machine_that_restarts_alone_has_no_second_lease(node: Node, cloud: Cloud) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    given(node, 600.0)
    tenant = move_in(node, cloud, 600.0)
    node.prints(b"training")
    tenant.kill()
    tenant.wait()
    for pid in node.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not node.processes(), "the processes to be gone")
    given(node, 600.0, ago_s=590.0)
    for key in (layout.orders(RUN, 1), layout.lease(RUN, 1)):
        aged(node, key, 590.0)
    assert move_in(node, cloud, 600.0).wait(60) == 0
    assert cloud.deletions


@pytest.mark.parametrize("why", ["cancelled", "superseded", "too late"])
def test_a_late_machine_that_nobody_waits_for_removes_itself_silently(node: Node, cloud: Cloud, why: str) -> None:
    node.order("python train.py", {"train.py": TRAINING})
    aged(node, layout.orders(RUN, 1), 601.0 if why == "too late" else 300.0)
    if why == "cancelled":
        node.store.put(layout.wishes(RUN, 1), dump(Wishes(Wish.CANCEL)))
    if why == "superseded":
        node.store.put(layout.orders(RUN, 2), node.store.get(layout.orders(RUN, 1)))
    assert move_in(node, cloud, 600.0).wait(30) == 0
    assert cloud.deletions
    with pytest.raises(Missing):
        node.report()


def test_a_machine_that_cannot_fetch_its_agent_removes_itself(tmp_path: Path, cloud: Cloud) -> None:
    """As one that is restored when its ticket to the store has ended."""
    boot = Boot(
        agent_url=f"{cloud.url}/none",
        agent_sha256="0" * 64,
        store="",
        orders="",
        lease_s=600.0,
        release={"url": f"{cloud.url}/group", "token_url": f"{cloud.url}/token"},
        arguments={},
        variables={},
        idle_s=0.2,
    )
    files = {one["path"]: one["content"] for one in json.loads(custom_data(boot).partition("\n")[2])["write_files"]}
    config, script = tmp_path / "node.json", tmp_path / "boot.py"
    config.write_text(files[CONFIG])
    script.write_text(files[BOOT].replace(CONFIG, str(config)).replace("/var/lib/stoker", str(tmp_path)))
    booting = subprocess.Popen([sys.executable, "-I", str(script)], stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: cloud.deletions, "the machine to remove itself")
        assert cloud.deletions[0] == "/group Bearer t0ken"
    finally:
        booting.kill()
        booting.wait()

"""Datasets that are mounted: rclone and FUSE as they are, in front of Azurite and an S3 server."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from agentnode import RUN, Node, eventually

from services import Azurite, S3Server
from stoker.agent.data.mounts import mounted_below
from stoker.model.dataset import DataFile, Manifest
from stoker.model.job.job import DataMode
from stoker.model.orders import DataOrder
from stoker.model.run.report import Outcome
from stoker.model.workspace import layout
from stoker.stores.access import Access, Credential, Route
from stoker.stores.kinds import grant
from stoker.stores.opening import open_store
from stoker.stores.sealing import seal
from stoker.stores.signing import new_key, signed, unverified

BIG = os.urandom(20_000_000)
FILES = {"train/ant.txt": b"ant", "val/a b ünï.txt": b"bee", "empty": b"", "big.bin": BIG}
READ = """
import hashlib, os, pathlib
top = pathlib.Path(os.environ["STOKER_DATA_IMAGES"])
for path in sorted(top.rglob("*")):
    if path.is_file():
        print(path.relative_to(top), hashlib.sha256(path.read_bytes()).hexdigest(), flush=True)
for verb in (lambda: open(top / "train/ant.txt", "ab"), lambda: os.remove(top / "big.bin")):
    try:
        verb()
        print("done", flush=True)
    except OSError:
        print("refused", flush=True)
"""
EXPECTED = [f"{path} {hashlib.sha256(FILES[path]).hexdigest()}" for path in sorted(FILES)] + ["refused"] * 2


@pytest.fixture
def node(node: Node, tmp_path: Path) -> Iterator[Node]:
    """Nothing stays mounted."""
    yield node
    node.kill()
    node.end()
    assert mounted_below(tmp_path) == []


class Far:
    """A dataset in a store that is not the run's own, and accesses to it."""

    def __init__(self, node: Node, url: str, credential: Credential) -> None:
        self._node, self._url, self._credential = node, url, credential
        self.seal = new_key()

    def put(self, files: Mapping[str, bytes], mode: DataMode) -> DataOrder:
        store, rows = open_store(self._url, self._credential), []
        for path, data in files.items():
            sha256 = hashlib.sha256(data).hexdigest()
            store.put(layout.content("ants", sha256), data)
            rows.append(DataFile(path, len(data), sha256))
        manifest = Manifest(rows)
        key = layout.manifest("ants", manifest.id)
        store.put(key, manifest.to_bytes())
        root = layout.elsewhere("blob", "")
        return DataOrder(
            "ants@1", mode, dataset=f"ants@{manifest.id}", store="blob", root=root, manifest=root + key, id=manifest.id
        )

    def access(self, for_s: float = 3600) -> Access:
        part = grant(self._url, self._credential, reads=[layout.dataset("ants")], writes=[], for_s=for_s)
        own = Route("", self._node.store.url, writes=True)
        routes = [Route(layout.elsewhere("blob", one.prefix), one.url, one.token) for one in part.routes]
        return Access((own, *routes), time.time() + for_s)

    def variables(self, for_s: float = 3600) -> dict[str, str]:
        key = layout.orders(RUN, self._node.attempt)
        self._node.store.put(key, signed(self.seal, unverified(self._node.store.get(key)), key))
        return {"STOKER_ACCESS": self.access(for_s).to_text(), "STOKER_SEAL": self.seal}


@pytest.fixture
def far(node: Node, azurite: Azurite) -> Far:
    return Far(node, azurite.new_container(), azurite.account_key)


def mounters(node: Node) -> list[int]:
    return [pid for pid in node.processes() if b"rclone" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]]


@pytest.mark.parametrize("mode", [DataMode.MOUNT, DataMode.DOWNLOAD, DataMode.AUTO])
def test_a_dataset_in_azure_is_read_as_it_was_put(node: Node, far: Far, mode: DataMode) -> None:
    node.order("python read.py", {"read.py": READ}, inputs={"images": far.put(FILES, mode)})
    report = node.finish(node.start(**far.variables()))
    assert (report.outcome, node.log().decode().splitlines()) == (Outcome.SUCCEEDED, EXPECTED), report.message
    figures = report.data["images"]
    assert figures.way == ("mount" if mode is DataMode.MOUNT else "download")
    assert figures.read_bytes >= len(BIG)
    assert 0 < figures.wait_share <= 1
    if mode is DataMode.AUTO:
        assert "`images`: download" in node.events("data-choice")[0]


def test_a_dataset_in_s3_is_mounted(node: Node, s3_server: S3Server) -> None:
    far = Far(node, s3_server.new_bucket(), s3_server.key)
    node.order("python read.py", {"read.py": READ}, inputs={"images": far.put(FILES, DataMode.MOUNT)})
    report = node.finish(node.start(**far.variables()))
    assert (report.outcome, node.log().decode().splitlines()) == (Outcome.SUCCEEDED, EXPECTED), report.message
    assert report.data["images"].way == "mount"


def test_no_token_is_in_a_command_line_a_log_or_the_store(node: Node, far: Far) -> None:
    node.order("sleep 2", inputs={"images": far.put(FILES, DataMode.MOUNT)})
    agent = node.start(**far.variables())
    pid = eventually(lambda: mounters(node), "rclone")[0]
    assert b"sig=" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    node.finish(agent)
    kept = b"".join(node.store.get(one.key) for one in node.store.list(""))
    assert b"sig=" not in kept


def test_an_agent_that_is_killed_leaves_no_mount_behind(node: Node, far: Far) -> None:
    node.order("python read.py; sleep 60", {"read.py": READ}, inputs={"images": far.put(FILES, DataMode.MOUNT)})
    agent = node.start(**far.variables())
    node.prints(b"refused")
    agent.kill()
    agent.wait()
    assert mounted_below(node.root), "it outlives its agent, until it is ended"
    assert node.end() == 0
    assert (mounted_below(node.root), node.processes()) == ([], [])


def test_a_mounting_program_that_is_killed_is_started_again(node: Node, far: Far) -> None:
    script = 'while [ ! -e "$STOKER_OUTPUTS/go" ]; do sleep 0.05; done; cat ${data.images}/train/ant.txt'
    node.order(f"echo ready; {script}", inputs={"images": far.put(FILES, DataMode.MOUNT)})
    agent = node.start(**far.variables())
    node.prints(b"ready")
    os.kill(mounters(node)[0], signal.SIGKILL)
    eventually(lambda: any("mounted again" in text for text in node.events("data")), "another mount")
    (node.folder / "work" / "outputs" / "go").touch()
    assert node.finish(agent).outcome is Outcome.SUCCEEDED
    assert node.log() == b"ready\nant"


def test_a_new_token_reaches_the_mount_before_the_old_one_ends(node: Node, far: Far) -> None:
    script = 'while [ ! -e "$STOKER_OUTPUTS/go" ]; do sleep 0.05; done; cat ${data.images}/train/ant.txt'
    node.order(f"echo ready; {script}", inputs={"images": far.put(FILES, DataMode.MOUNT)})
    agent = node.start(**far.variables(for_s=8))
    node.prints(b"ready")
    key = layout.access("r1", 1)
    node.store.put(key, seal(far.seal, far.access(3600).to_text(), key))
    eventually(lambda: any("new token" in text for text in node.events("data")), "a new token")
    (node.folder / "work" / "outputs" / "go").touch()
    assert node.finish(agent).outcome is Outcome.SUCCEEDED
    assert node.log() == b"ready\nant"


def test_a_token_that_has_ended_is_reported_with_a_message(node: Node, far: Far) -> None:
    order = far.put(FILES, DataMode.MOUNT)
    node.order("cat ${data.images}/train/ant.txt", inputs={"images": order})
    node.start(**far.variables(for_s=-10))
    report: Any = eventually(lambda: node._has_report() and node.report().outcome and node.report(), "the end", 90)
    assert (report.outcome, node.log()) == (Outcome.CANCELLED, b"")  # it waits for a new token
    assert report.cause == "store-denied" and "/ants`" in report.message


def test_a_content_that_is_gone_fails_before_the_script(node: Node, far: Far) -> None:
    order = far.put(FILES, DataMode.MOUNT)
    open_store(far._url, far._credential).delete(layout.content("ants", hashlib.sha256(b"bee").hexdigest()))
    node.order("echo never", inputs={"images": order})
    report = node.finish(node.start(**far.variables()))
    assert (report.outcome, node.log()) == (Outcome.BROKEN, b"")
    assert report.cause == "store-missing" and "`val/a b ünï.txt` of ants@1" in report.message

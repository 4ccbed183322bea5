"""Datasets on a node: the real agent, packed as it is shipped, stages, protects and removes them."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentnode import RUN, Node, eventually

from stoker.agent.data.mounts import mounted_below
from stoker.model.cause import Cause
from stoker.model.dataset import DataFile, Manifest
from stoker.model.job.job import DataMode
from stoker.model.orders import DataOrder, Orders
from stoker.model.run.report import Outcome, Phase
from stoker.model.wire import dump, load
from stoker.model.workspace import layout

FILES = {
    "train/ant.txt": b"ant",
    "train/bee.txt": b"bee",
    "val/ant.txt": b"ant",
    "empty": b"",
    "a b/ünï.txt": b"x" * 70_000,
}
SHOW = """
import json, os, pathlib
top = pathlib.Path(os.environ["STOKER_DATA_IMAGES"])
found = {str(path.relative_to(top)): len(path.read_bytes()) for path in top.rglob("*") if path.is_file()}
print(json.dumps(found, sort_keys=True, ensure_ascii=False), flush=True)
"""
SPOIL = """
import os, pathlib
top = pathlib.Path(os.environ["STOKER_DATA_IMAGES"])
for verb in (lambda: open(top / "train/ant.txt", "ab"), lambda: os.remove(top / "train/ant.txt"),
             lambda: open(top / "new", "w"), lambda: os.chmod(top / "train/ant.txt", 0o666)):
    try:
        verb()
        print("done")
    except OSError:
        print("refused")
"""


@pytest.fixture
def node(node: Node, tmp_path: Path) -> Iterator[Node]:
    """Nothing stays mounted."""
    yield node
    node.kill()
    node.end()
    assert mounted_below(tmp_path) == []


def put(node: Node, files: Mapping[str, bytes], mode: DataMode = DataMode.AUTO, **more: Any) -> DataOrder:
    """A dataset in the node's own store."""
    rows = []
    for path, data in files.items():
        sha256 = hashlib.sha256(data).hexdigest()
        node.store.put(layout.content("ants", sha256), data)
        rows.append(DataFile(path, len(data), sha256))
    manifest = Manifest(rows)
    key = layout.manifest("ants", manifest.id)
    node.store.put(key, manifest.to_bytes())
    named = f"ants@{manifest.id}"
    return DataOrder("ants@1", mode, dataset=named, manifest=key, id=manifest.id, store="folder", **more)


def sizes(files: Mapping[str, bytes]) -> dict[str, int]:
    return {path: len(data) for path, data in files.items()}


def seen(node: Node) -> dict[str, int]:
    sizes: dict[str, int] = json.loads(node.log().splitlines()[-1])
    return sizes


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder on another file system than the store's: from there nothing can be linked."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_folder_store_on_the_same_disk_is_linked_and_not_copied(node: Node) -> None:
    report = node.run("python show.py", {"show.py": SHOW}, inputs={"images": put(node, FILES)})
    assert report.outcome is Outcome.SUCCEEDED
    assert seen(node) == sizes(FILES)
    assert (report.data["images"].way, report.data["images"].files) == ("link", 5)
    assert list((node.root / "cache" / "objects").iterdir()) == []


def test_another_disk_is_downloaded_to_once(node: Node, memory: Path) -> None:
    order = put(node, FILES, DataMode.DOWNLOAD)
    node.order("python show.py", {"show.py": SHOW}, inputs={"images": order})
    first = node.finish(node.start(STOKER_CACHE=str(memory)))
    assert (seen(node), first.data["images"].read_bytes) == (sizes(FILES), 3 + 3 + 70_000)
    node.order("python show.py", {"show.py": SHOW}, attempt=2, inputs={"images": order})
    second = node.finish(node.start(STOKER_CACHE=str(memory)))
    assert (seen(node), second.data["images"].read_bytes) == (sizes(FILES), 0)
    assert second.data["images"].cached_bytes == 70_006
    assert 0 < second.data["images"].wait_share <= 1
    assert list((memory / "runs").iterdir()) == []
    assert list((memory / "parts").iterdir()) == []


@pytest.mark.parametrize("cached", [True, False])
def test_a_script_cannot_change_its_data_not_even_as_root(node: Node, memory: Path, cached: bool) -> None:
    order = put(node, FILES, DataMode.DOWNLOAD)
    node.order("python spoil.py", {"spoil.py": SPOIL}, inputs={"images": order})
    node.finish(node.start(**({"STOKER_CACHE": str(memory)} if cached else {})))
    assert node.log().split() == [b"refused"] * 4
    assert node.store.get(layout.content("ants", hashlib.sha256(b"ant").hexdigest())) == b"ant"


def test_a_cache_that_was_damaged_by_hand_is_found_and_repaired(node: Node, memory: Path) -> None:
    order = put(node, FILES, DataMode.DOWNLOAD)
    for attempt in (1, 2):
        node.order(
            "python show.py; cat ${data.images}/train/ant.txt", {"show.py": SHOW}, attempt, inputs={"images": order}
        )
        report = node.finish(node.start(STOKER_CACHE=str(memory)))
        assert (report.outcome, node.log().splitlines()[-1]) == (Outcome.SUCCEEDED, b"ant")
        if attempt == 1:
            place = next((memory / "objects").glob(f"*/{hashlib.sha256(b'ant').hexdigest()}"))
            place.write_bytes(b"wsp")
    assert re.findall(r"\d+", node.events("data-repaired")[0])[0] == "1"


@pytest.mark.parametrize("mode", DataMode)
def test_a_store_that_was_damaged_fails_the_run_before_the_script(node: Node, memory: Path, mode: DataMode) -> None:
    order = put(node, FILES, mode)
    path = node.store.root / layout.content("ants", hashlib.sha256(b"bee").hexdigest())
    path.write_bytes(b"fly")
    node.order("python show.py", {"show.py": SHOW}, inputs={"images": order})
    report = node.finish(node.start(**({"STOKER_CACHE": str(memory)} if mode is DataMode.DOWNLOAD else {})))
    assert (report.outcome, node.log()) == (Outcome.BROKEN, b"")
    assert report.cause == "store-corrupt" and "`train/bee.txt`" in report.message
    assert "stoker data verify" in report.hint


def test_a_file_that_is_gone_is_named(node: Node, memory: Path) -> None:
    order = put(node, FILES, DataMode.DOWNLOAD)
    node.store.delete(layout.content("ants", hashlib.sha256(b"bee").hexdigest()))
    node.order("python show.py", {"show.py": SHOW}, inputs={"images": order})
    report = node.finish(node.start(STOKER_CACHE=str(memory)))
    assert (report.outcome, node.log()) == (Outcome.BROKEN, b"")
    assert report.cause == "store-missing" and "`train/bee.txt`" in report.message


def test_each_node_takes_its_part(node: Node) -> None:
    order = put(node, FILES, shard=True)
    node.order("python show.py", {"show.py": SHOW}, inputs={"images": order}, nodes=2)
    orders = load(Orders, node.store.get(layout.orders(RUN, 1)))
    agents = []
    for number in (0, 1):
        node.folder, key = node.root / f"node-{number}", layout.orders(RUN, 1, number)
        node.store.put(key, dump(replace(orders, node=number, key=f"{node.key}-{number}")))
        agents.append(node.start("--orders", key))
    assert [agent.wait(40) for agent in agents] == [0, 0]
    parts = [json.loads(node.store.get(layout.log(RUN, 1, number))) for number in (0, 1)]
    assert list(parts[0]) == ["a b/ünï.txt", "train/ant.txt", "val/ant.txt"]
    assert list(parts[1]) == ["empty", "train/bee.txt"]


def test_too_large_for_the_cache_says_so(node: Node, memory: Path) -> None:
    order = put(node, FILES, DataMode.DOWNLOAD)
    node.order("python show.py", {"show.py": SHOW}, inputs={"images": order})
    report = node.finish(node.start(STOKER_CACHE=str(memory), STOKER_CACHE_LIMIT="50KB"))
    assert (report.outcome, node.log()) == (Outcome.BROKEN, b"")
    assert report.cause == Cause.CACHE_FULL
    assert re.findall(r"[\d.]+ MB", report.message) == ["0.1 MB", "0.1 MB", "0.0 MB"], "more, the limit, in use"
    assert "STOKER_CACHE_LIMIT" in report.hint


def test_a_manifest_that_leads_out_of_its_folder_is_refused(node: Node) -> None:
    order = put(node, {"a": b"a"})
    evil = node.store.get(order.manifest).replace(b'"a"', b'"../a"')
    node.store.put(order.manifest, evil)
    other = DataOrder("ants@1", manifest=order.manifest, id=hashlib.sha256(evil).hexdigest())
    report = node.run("python show.py", {"show.py": SHOW}, inputs={"images": other})
    assert report.outcome is Outcome.BROKEN
    assert "`../a`" in report.message
    assert not (node.root / "cache" / "runs").exists() or list((node.root / "cache" / "runs").iterdir()) == []


def test_files_registered_where_they_are_are_read_there(node: Node, memory: Path) -> None:
    node.store.put("coco/a.txt", b"here")
    listed = {one.key: one for one in node.store.list("coco")}["coco/a.txt"]
    manifest = Manifest([DataFile("a.txt", 4, key="coco/a.txt", etag=listed.etag)])
    node.store.put("m.json", manifest.to_bytes())
    order = DataOrder("coco@1", manifest="m.json", id=manifest.id, store="folder")
    report = node.run("cat ${data.images}/a.txt", inputs={"images": order})
    assert (node.log(), report.data["images"].way) == (b"here", "link")
    node.store.put("coco/a.txt", b"there!")
    report = node.run("cat ${data.images}/a.txt", attempt=2, inputs={"images": order})
    assert report.outcome is Outcome.BROKEN
    assert report.cause == Cause.DATASET_CHANGED and "`a.txt`" in report.message and "coco@1" in report.message


def test_an_agent_killed_while_it_runs_leaves_nothing_mounted_or_held(node: Node, memory: Path) -> None:
    order = put(node, FILES, DataMode.DOWNLOAD)
    node.order("python show.py; sleep 60", {"show.py": SHOW}, inputs={"images": order})
    agent = node.start(STOKER_CACHE=str(memory))
    node.prints(b"train/ant.txt")
    assert len(mounted_below(memory)) == 1
    agent.kill()
    agent.wait()
    assert node.end() == 0
    assert mounted_below(memory) == []
    assert list((memory / "runs").iterdir()) == []
    assert node.processes() == []


def test_cancelled_while_it_stages_ends_soon_and_leaves_parts_to_go_on_with(node: Node, memory: Path) -> None:
    with serving({"/big.bin": b"x" * 5_000_000}, slow=True) as (url, _):
        order = DataOrder(f"{url}/big.bin", url=f"{url}/big.bin")
        node.order("python show.py", {"show.py": SHOW}, inputs={"images": order})
        agent = node.start(STOKER_CACHE=str(memory))
        node.reaches(Phase.STAGING)
        eventually(lambda: any(part.stat().st_size for part in (memory / "parts").glob("*")), "some bytes")
        node.cancel()
        report = node.finish(agent)
    assert (report.outcome, node.log()) == (Outcome.CANCELLED, b"")
    assert len(list((memory / "parts").iterdir())) == 1


def test_a_url_is_fetched_once_and_again_when_it_has_changed(node: Node) -> None:
    files = {"/weights.bin": b"first"}
    with serving(files) as (url, _):
        order = DataOrder(f"{url}/weights.bin", url=f"{url}/weights.bin")
        for attempt, content, read in ((1, b"first", 5), (2, b"first", 0), (3, b"second!", 7)):
            files["/weights.bin"] = content
            report = node.run("cat ${data.w}; basename ${data.w}", attempt=attempt, inputs={"w": order})
            assert node.log() == content + b"weights.bin\n"
            assert report.data["w"].read_bytes == read


def test_a_url_with_another_hash_fails_the_run(node: Node) -> None:
    with serving({"/w": b"wrong"}) as (url, _):
        order = DataOrder("w", url=f"{url}/w", sha256=hashlib.sha256(b"right").hexdigest())
        report = node.run("cat ${data.w}", inputs={"w": order})
    assert (report.outcome, node.log()) == (Outcome.BROKEN, b"")
    assert hashlib.sha256(b"wrong").hexdigest() in report.message
    assert list((node.root / "cache" / "parts").iterdir()) == []


def test_a_url_that_is_interrupted_is_resumed(node: Node) -> None:
    content = os.urandom(3_000_000)
    with serving({"/w": content}, cut_at=1_000_000) as (url, requests):
        order = DataOrder("w", url=f"{url}/w", sha256=hashlib.sha256(content).hexdigest())
        report = node.run("sha256sum ${data.w}", inputs={"w": order})
    assert report.outcome is Outcome.SUCCEEDED, report.message
    assert node.log().startswith(hashlib.sha256(content).hexdigest().encode())
    assert [one for one in requests if one] == ["bytes=1000000-", "bytes=2000000-"]


def test_a_url_that_is_not_there_is_reported(node: Node) -> None:
    with serving({}) as (url, _):
        report = node.run("cat ${data.w}", inputs={"w": DataOrder("w", url=f"{url}/nowhere")})
    assert report.outcome is Outcome.BROKEN
    assert report.cause == "store-missing" and f"{url}/nowhere" in report.message


@contextmanager
def serving(files: Mapping[str, bytes], *, slow: bool = False, cut_at: int = 0) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server with these files; the requested ranges. `cut_at`: every response is cut off after so much."""
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # as the library calls it
            content = files.get(self.path)
            requests.append(self.headers.get("Range") or "")
            if content is None:
                self.send_error(404)
                return
            start = int(requests[-1][6:-1]) if requests[-1] else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.end_headers()
            rest = content[start:]
            rest = rest[:cut_at] if cut_at else rest
            for at in range(0, len(rest), 100_000):
                self.wfile.write(rest[at : at + 100_000])
                if slow:
                    time.sleep(0.1)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()

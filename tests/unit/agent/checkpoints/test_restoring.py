"""What is restored before a script starts: the newest complete set, whatever happened to the store."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker.agent.checkpoints import restoring, sets
from stoker.agent.checkpoints.commits import Checkpoints
from stoker.agent.checkpoints.folders.choosing import Care
from stoker.agent.checkpoints.folders.files import OpenForWriting
from stoker.agent.checkpoints.restoring import restore, saved_sets
from stoker.agent.checkpoints.sets import read_fences
from stoker.agent.machine.machine import NodeFolder
from stoker.errors import Conflict, Corrupt, StoreFailed
from stoker.model.job.job import Job
from stoker.model.orders import Orders
from stoker.model.snapshot import CheckpointSet, Fence, claim, visible
from stoker.model.wire import dump, load
from stoker.model.workspace import layout
from stoker.stores.folder.store import FolderStore

RUN = "r1"


class Node:
    def __init__(self, store: FolderStore, root: Path, attempt: int, number: int = 0) -> None:
        self.store = store
        self.folder = NodeFolder(root / f"node-{attempt}-{number}")
        self.ckpt = self.folder.work / "checkpoints"
        self.ckpt.mkdir(parents=True)
        job = Job(name="ants", run="true")
        self.orders = Orders(RUN, "ants-1", attempt, number, "key", job, "s", "python3", nodes=number + 1)
        store.put(layout.orders(RUN, attempt, number), dump(self.orders))
        self.events: list[tuple[str, str]] = []

    def tell(self, kind: str, text: str) -> None:
        self.events.append((kind, text))

    def begin(self) -> CheckpointSet | None:
        found = restore(self.store, self.orders, self.folder, self.tell)
        self.checkpoints = Checkpoints(
            self.store,
            self.orders,
            self.folder,
            lambda: (None, {}),
            self.tell,
            open_files=lambda: OpenForWriting(set()),
        )
        self.checkpoints.begin_from(found)
        return found

    def commit(self, **files: str) -> CheckpointSet:
        for name, content in files.items():
            (self.ckpt / name).write_text(content)
        made = self.checkpoints.commit(Care.TRUSTING)
        assert made
        self.checkpoints.tidy()
        return made

    def here(self) -> dict[str, str]:
        return {str(one.relative_to(self.ckpt)): one.read_text() for one in self.ckpt.rglob("*") if one.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.fixture
def next_node(store: FolderStore, tmp_path: Path) -> Callable[[], Node]:
    """Each time the node of the next attempt."""
    attempts = iter(range(1, 100))
    return lambda: Node(store, tmp_path, next(attempts))


@pytest.fixture
def three_sets(next_node: Callable[[], Node]) -> list[CheckpointSet]:
    node = next_node()
    node.begin()
    return [node.commit(model=f"model {n}", frozen="the same") for n in (1, 2, 3)]


def content(store: FolderStore, made: CheckpointSet, name: str) -> Path:
    sha256 = next(one.sha256 for one in made.entries if one.path.endswith(f"/{name}"))
    return store.root / layout.checkpoint_file(RUN, sha256)


def manifest(store: FolderStore, made: CheckpointSet) -> Path:
    return store.root / layout.checkpoint_set(RUN, *made.position)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_the_newest_set_comes_back_and_is_reported(
    three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    node = next_node()
    assert node.begin() == three_sets[-1]
    assert node.here() == {"model": "model 3", "frozen": "the same"}
    [(kind, text)] = node.events
    assert kind == "restored" and text.startswith("resumed from checkpoint 3 of attempt 1: 2 files")


DAMAGE: dict[str, Callable[[FolderStore, CheckpointSet], object]] = {
    "a truncated file": lambda store, one: os.truncate(content(store, one, "model"), 3),
    "an empty file": lambda store, one: os.truncate(content(store, one, "model"), 0),
    "a flipped bit": lambda store, one: flip(content(store, one, "model"), 2),
    "a missing file": lambda store, one: content(store, one, "model").unlink(),
    "a foreign file": lambda store, one: content(store, one, "model").write_text("from elsewhere"),
    "a truncated manifest": lambda store, one: os.truncate(manifest(store, one), 50),
    "an empty manifest": lambda store, one: os.truncate(manifest(store, one), 0),
    "a foreign manifest": lambda store, one: manifest(store, one).write_text('{"hello": [1, 2]}'),
    "a manifest that is no mapping": lambda store, one: manifest(store, one).write_text("[]"),
    "the manifest of another set": lambda store, one: manifest(store, one).write_bytes(
        (store.root / layout.checkpoint_set(RUN, 1, 1)).read_bytes()
    ),
    "a manifest of binary": lambda store, one: manifest(store, one).write_bytes(os.urandom(100)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_set_is_quarantined_and_the_one_before_it_used(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node], damage: str
) -> None:
    DAMAGE[damage](store, three_sets[-1])
    node = next_node()
    assert node.begin() == three_sets[-2]
    assert node.here() == {"model": "model 2", "frozen": "the same"}
    assert [kind for kind, _ in node.events] == ["quarantined", "restored"]
    assert "checkpoint 3 of attempt 1 is damaged" in node.events[0][1]
    assert (store.root / layout.quarantined_set(RUN, 1, 3)).exists()
    assert not manifest(store, three_sets[-1]).exists()
    again = next_node()
    assert again.begin() == three_sets[-2]
    assert [kind for kind, _ in again.events] == ["restored"], "it is told once"


def test_every_single_flipped_bit_of_a_manifest_is_noticed(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    whole = manifest(store, three_sets[-1]).read_bytes()
    orders = next_node().orders
    for at in range(len(whole)):
        flip(manifest(store, three_sets[-1]), at)
        try:
            found = sets.read_set(store, orders, three_sets[-1].position)
        except Corrupt:
            continue
        finally:
            manifest(store, three_sets[-1]).write_bytes(whole)
        assert found == three_sets[-1]  # a blank that became another blank


def test_a_damaged_content_that_all_sets_share_is_sent_again_by_whoever_has_it(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    flip(content(store, three_sets[-1], "frozen"), 0)
    node = next_node()
    assert node.begin() is None
    assert [kind for kind, _ in node.events] == ["quarantined"] * 3 + ["restore-failed"]
    assert node.here() == {}
    node.commit(model="model 1", frozen="the same")
    after = next_node()
    assert after.begin()
    assert after.here() == {"model": "model 1", "frozen": "the same"}


def test_a_set_with_files_outside_the_checkpoint_folders_is_refused(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    made = three_sets[-1]
    text = manifest(store, made).read_bytes().replace(b"checkpoints/model", b"train.py")
    foreign = load(CheckpointSet, text).sealed
    manifest(store, made).write_bytes(dump(foreign))
    node = next_node()
    assert node.begin() == three_sets[-2]
    assert not (node.folder.work / "train.py").exists()


def test_what_lies_among_the_sets_and_fences_and_is_not_ours_does_no_harm(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    for name in (".DS_Store", "copy of 0001-00000003.json", "0001.json", "x-y.json"):
        (store.root / layout.checkpoint_sets(RUN) / name).write_text("{}")
    (store.root / layout.fences(RUN) / "notes.txt").write_text("?")
    (store.root / layout.fence(RUN, 1)).write_bytes(b"\0damaged")
    node = next_node()
    assert node.begin() == three_sets[-1]


def test_the_folder_becomes_what_it_was_even_where_the_source_had_more(
    three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    node = next_node()
    (node.ckpt / "model").mkdir()
    (node.ckpt / "removed by the script").write_text("came with the source")
    node.begin()
    assert node.here() == {"model": "model 3", "frozen": "the same"}


def test_an_attempt_that_is_over_may_not_begin(store: FolderStore, next_node: Callable[[], Node]) -> None:
    first, second = next_node(), next_node()
    second.begin()
    with pytest.raises(Conflict):
        first.begin()


def test_an_attempt_that_died_while_it_took_over_hides_nothing(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    second, third = next_node(), next_node()
    store.put(layout.fence(RUN, second.orders.attempt), dump(claim(second.orders.attempt)))
    assert third.begin() == three_sets[-1]
    assert visible([(1, 3), (1, 4)], read_fences(store, third.orders)) == [(1, 3)]


def test_a_store_that_does_not_answer_is_asked_again(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "_PAUSE_S", 0.0)
    node, get, failures = next_node(), store.get, iter(range(4))

    def failing(key: str, start: int = 0, size: int | None = None) -> bytes:
        if "/files/" in key and next(failures, None) is not None:
            raise StoreFailed("out of reach")
        return get(key, start, size)

    monkeypatch.setattr(store, "get", failing)
    assert node.begin() == three_sets[-1]
    assert [kind for kind, _ in node.events] == ["restore-waits", "restored"]


def test_a_store_that_is_gone_does_not_make_a_good_checkpoint_a_damaged_one(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "TRY_FOR_S", 0.0)
    node, get, away = next_node(), store.get, store.root.with_name("away")

    def going(key: str, start: int = 0, size: int | None = None) -> bytes:
        if "/files/" in key and store.root.exists():
            store.root.rename(away)
        return get(key, start, size)

    monkeypatch.setattr(store, "get", going)
    with pytest.raises(StoreFailed, match="unavailable"):
        node.begin()
    away.rename(store.root)
    monkeypatch.undo()
    assert next_node().begin() == three_sets[-1]


def test_the_fence_says_from_where_an_attempt_went_on(
    store: FolderStore, three_sets: list[CheckpointSet], next_node: Callable[[], Node]
) -> None:
    node = next_node()
    node.begin()
    assert Fence(2, 1, 3) in read_fences(store, node.orders)


def test_every_node_restores_its_own_checkpoints(store: FolderStore, tmp_path: Path) -> None:
    first = [Node(store, tmp_path, 1, number) for number in range(2)]
    for number, node in enumerate(first):
        assert node.begin() is None
        for step in range(20):
            node.commit(shard=f"shard {number} at {step}")
    again = [Node(store, tmp_path, 2, number) for number in range(2)]
    assert [node.begin() is not None for node in again] == [True, True]
    assert [node.here() for node in again] == [{"shard": "shard 0 at 19"}, {"shard": "shard 1 at 19"}]
    contents = [list(store.list(layout.checkpoint_files(RUN, number))) for number in range(2)]
    assert len(contents[0]) == Job(name="ants", run="true").retention.keep, "and lets go of what it no longer keeps"
    assert len(contents[1]) == 16, "a node of several keeps more, whether or not its saves were counted in time"


def test_a_node_without_checkpoints_restores_those_of_the_first(
    store: FolderStore, three_sets: list[CheckpointSet], tmp_path: Path
) -> None:
    os.truncate(content(store, three_sets[-1], "model"), 3)
    other = Node(store, tmp_path, 2, 1)
    assert other.begin() == three_sets[-2]
    assert other.here() == {"model": "model 2", "frozen": "the same"}
    assert manifest(store, three_sets[-1]).exists(), "what is damaged is the first node's to put aside"
    other.commit(model="its own")
    later = Node(store, tmp_path, 3, 1)
    later.begin()
    assert later.here() == {"model": "its own", "frozen": "the same"}


def test_a_node_that_began_from_a_set_of_the_first_one_can_return_to_it(store: FolderStore, tmp_path: Path) -> None:
    """Its own sets since then may be of saves that other nodes have not committed."""
    for node in [Node(store, tmp_path, 1, number) for number in range(2)]:
        node.begin()
        base = node.commit(model="the same")
    for node in [Node(store, tmp_path, 2, number) for number in range(2)]:
        node.begin()
        node.commit(model=f"of node {node.orders.node}")
    later = Node(store, tmp_path, 3, 1)
    first = Node(store, tmp_path, 3)
    first.begin()
    offered = saved_sets(store, later.orders)
    assert [one.attempt for one in offered] == [2, 1]
    found = restore(store, later.orders, later.folder, later.tell, until=offered[-1].position)
    assert found == offered[-1] and later.here() == {"model": "the same"} and base.position == found.position


def test_nodes_whose_number_has_changed_restore_those_of_the_first(store: FolderStore, tmp_path: Path) -> None:
    """Three nodes, then two, then three again: the third one's own are older than what the others have done since."""

    def attempt(number: int, nodes: int, *widths: int) -> list[Node]:
        made = [Node(store, tmp_path, number, node) for node in range(nodes)]
        for node in made:
            node.orders = replace(node.orders, nodes=nodes, widths=(0, *widths, nodes))
            node.begin()
        return made

    for node in attempt(1, 3):
        node.commit(shard=f"{node.orders.node} of 3 at 10")
    fewer = attempt(2, 2, 3)
    assert [node.here() for node in fewer] == [{"shard": "0 of 3 at 10"}] * 2
    for node in fewer:
        node.commit(shard=f"{node.orders.node} of 2 at 20")
    again = attempt(3, 3, 3, 2)
    assert [node.here() for node in again] == [{"shard": "0 of 2 at 20"}] * 3
    for node in again:
        node.commit(shard=f"{node.orders.node} of 3 at 30")
    assert [node.here()["shard"] for node in attempt(4, 3, 3, 2, 3)] == [f"{node} of 3 at 30" for node in range(3)]


def forge(store: FolderStore, made: CheckpointSet, **changes: Any) -> None:
    """A script with its node's access writes a set of its own, seal and all."""
    manifest(store, made).write_bytes(dump(replace(made, **changes).sealed))


def test_a_forged_set_changes_no_times_outside_its_folders(
    three_sets: list[CheckpointSet], store: FolderStore, next_node: Callable[[], Node], tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    before = precious.stat().st_mtime_ns
    up = "../" * 30
    times = {str(precious): 1, f"{up}{str(precious).lstrip('/')}": 1, "../../precious": 1}
    forge(store, three_sets[-1], changed_ns={**three_sets[-1].changed_ns, **times})
    node = next_node()
    assert node.begin()
    assert node.here()["model"] == "model 3"
    assert precious.stat().st_mtime_ns == before


@pytest.mark.parametrize("path", ["checkpoints/../../escaped", "/tmp/x-escaped", "../escaped", "checkpoints/a\0b"])
def test_a_forged_set_with_a_path_that_leads_out_is_quarantined(
    three_sets: list[CheckpointSet], store: FolderStore, next_node: Callable[[], Node], tmp_path: Path, path: str
) -> None:
    entries = (*three_sets[-1].entries, replace(three_sets[-1].entries[0], path=path))
    forge(store, three_sets[-1], entries=entries)
    node = next_node()
    node.begin()
    assert node.here()["model"] == "model 2"
    assert [kind for kind, _ in node.events] == ["quarantined", "restored"]
    assert not list(tmp_path.rglob("*escaped*"))


def test_a_set_that_is_no_set_at_all_is_quarantined(
    three_sets: list[CheckpointSet], store: FolderStore, next_node: Callable[[], Node]
) -> None:
    for made, data in zip(three_sets[1:], (b"[" * 100_000, b'{"attempt": [], "entries": 5}'), strict=True):
        manifest(store, made).write_bytes(data)
    node = next_node()
    node.begin()
    assert node.here()["model"] == "model 1"


def test_keys_beside_the_sets_that_nobody_spells_like_this_are_not_looked_at(
    three_sets: list[CheckpointSet], store: FolderStore, next_node: Callable[[], Node]
) -> None:
    for name in ("9-9.json", f"{'9' * 60}-{'9' * 60}.json", "0001-00000004.json.json", "-1--1.json"):
        store.put(f"{layout.checkpoint_sets(RUN)}{name}", b"{}")
        store.put(f"{layout.fences(RUN)}{name}", b"{}")
    node = next_node()
    node.begin()
    assert node.here()["model"] == "model 3"

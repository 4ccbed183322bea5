"""Code is removed with the last run that used it, and never under a submission that is about to use it."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from stoker.errors import StoreUnavailable, Unanswered
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.model.workspace.store import FOLDER
from stoker.server.codeshelf import PATIENCE_S, Arrivals, CodeShelf
from stoker.server.removals import UnusedCode
from stoker.stores import Store
from stoker.stores.trees.blobstream import blob_stream
from stoker.testing.fakes import MemoryStore


class World:
    """One server with a folder and a store that it shares with others."""

    def __init__(self, shared: str = "http://127.0.0.1/far") -> None:
        self.now = 0.0
        self.arrivals = Arrivals(lambda: self.now)
        self.near, self.other = MemoryStore(), MemoryStore(shared)
        own = CodeShelf(self.near, None, self.arrivals)
        beside = own if shared.startswith("http") else None
        self.shelves = {FOLDER: own, "team": CodeShelf(self.other, beside, self.arrivals, "team")}
        self.runs: dict[str, str] = {}  # id to snapshot
        self.code = UnusedCode(self, self.arrivals, lambda: set(self.runs.values()), lambda: set(self.runs))  # type: ignore[arg-type]

    def of(self, name: str) -> CodeShelf:
        return self.shelves[name]

    def send(self, files: dict[str, bytes], store: str = FOLDER) -> Snapshot:
        """What a client does before it submits."""
        code, shelf = snapshot(files), self.of(store)
        contents = {hashlib.sha256(data).hexdigest(): data for data in files.values()}
        while missing := shelf.register(code):
            wanted = [(sha256, len(contents[sha256]), reader(contents[sha256])) for sha256 in missing]
            shelf.take(io.BytesIO(b"".join(blob_stream(wanted))))
        return code

    def submit(self, run: str, files: dict[str, bytes], store: str = FOLDER) -> Snapshot:
        """What server and client do: a client that learns that code is missing uploads it again."""
        while True:
            code = self.send(files, store)
            with self.arrivals.using(store, code.id):
                if self.of(store).has(code.id):
                    self.runs[run] = code.id
                    self.arrivals.arrived(code.id)
                    return code

    def remove(self, run: str, store: str = FOLDER) -> None:
        self.code.remove({store: {self.runs.pop(run)}})


def reader(data: bytes) -> Callable[[], io.BytesIO]:
    return lambda: io.BytesIO(data)


def snapshot(files: dict[str, bytes]) -> Snapshot:
    return Snapshot(
        tuple(Entry(path, EntryKind.FILE, hashlib.sha256(data).hexdigest(), len(data)) for path, data in files.items())
    )


def keys(store: Store) -> set[str]:
    return {one.key for one in store.list("")}


def whole(store: Store, code: Snapshot) -> bool:
    return {layout.snapshot(code.id), *(layout.blob(entry.sha256) for entry in code.entries)} <= keys(store)


def test_nothing_is_left_after_the_last_run_that_used_it() -> None:
    world = World()
    both = world.submit("a", {"x.py": b"1", "y.py": b"2"})
    world.submit("b", {"x.py": b"1", "y.py": b"2"})
    world.submit("c", {"x.py": b"1", "z.py": b"3"})
    world.remove("a")
    assert whole(world.near, both)
    world.remove("b")
    assert layout.blob(hashlib.sha256(b"2").hexdigest()) not in keys(world.near)
    world.remove("c")
    assert keys(world.near) == set()


def test_code_that_was_just_sent_stays_until_its_submission_is_given_up() -> None:
    world = World()
    world.submit("a", {"x.py": b"1"})
    coming = world.send({"x.py": b"1", "y.py": b"2"})
    world.remove("a")
    assert whole(world.near, coming)
    world.now = PATIENCE_S + 1
    world.code.remove({})
    assert keys(world.near) == set()


@pytest.mark.parametrize("store", [FOLDER, "team"])
def test_a_submission_that_waits_too_long_for_a_removal_is_given_up_and_holds_nothing(store: str) -> None:
    arrivals, begun, over = Arrivals(wait_s=0.02), threading.Event(), threading.Event()

    def removal() -> None:
        with arrivals.still(store):
            begun.set()
            over.wait(30)

    thread = threading.Thread(target=removal)
    thread.start()
    assert begun.wait(30)
    with pytest.raises(Unanswered):
        arrivals.begin("team", "s")
    over.set()
    thread.join()
    with arrivals.still(store) as coming:
        assert not coming.snapshots
    with arrivals.using("team", "s"), arrivals.still("other") as coming:
        assert coming.snapshots == {"s"}


def test_files_that_are_on_their_way_for_a_snapshot_stay() -> None:
    world = World()
    world.submit("a", {"x.py": b"1"})
    code, shelf = snapshot({"x.py": b"1", "y.py": b"2"}), world.of(FOLDER)
    assert len(shelf.register(code)) == 1, "it relies on what the other run has"
    world.remove("a")
    shelf.take(io.BytesIO(b"".join(blob_stream([(hashlib.sha256(b"2").hexdigest(), 1, reader(b"2"))]))))
    assert shelf.register(code) == []
    assert whole(world.near, code)


def test_a_rerun_that_is_being_taken_in_keeps_the_code_of_the_run_that_is_removed() -> None:
    world = World()
    code = world.submit("a", {"x.py": b"1"})
    with world.arrivals.using(FOLDER, code.id):
        world.remove("a")
        assert whole(world.near, code)
        world.runs["b"] = code.id
    world.code.remove({})
    assert whole(world.near, code)
    world.remove("b")
    assert keys(world.near) == set()


def test_runs_that_come_and_go_at_once_with_the_same_files_never_find_one_missing() -> None:
    """The race itself, on threads: code that was complete for a run stays complete until that run is removed."""
    world = World()
    failures: list[str] = []

    def live(number: int) -> None:
        for turn in range(60):
            files = {"shared.py": b"same", f"{turn % 3}.py": str(turn % 3).encode()}
            try:
                code = world.submit(f"{number}-{turn}", files)
                if not whole(world.near, code):
                    failures.append(f"{number}-{turn}")
                world.remove(f"{number}-{turn}")
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=live, args=(number,)) for number in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failures == []
    world.now = PATIENCE_S + 1
    world.code.remove({})
    assert keys(world.near) == set()


@pytest.mark.parametrize("place", ["http://127.0.0.1/far", "memory://nas"])
def test_the_code_of_another_servers_run_stays_in_a_store_that_is_shared(place: str) -> None:
    world = World(place)
    code = world.submit("a", {"x.py": b"1"}, "team")
    world.submit("b", {"z.py": b"2"}, "team")
    world.other.put(layout.record("0" * 20), f'{{"run":{{"snapshot":"{code.id}"}}}}'.encode())
    before = keys(world.other)
    world.remove("a", "team")
    assert keys(world.other) == before
    world.other.delete(layout.record("0" * 20))
    world.code.remove({"team": {code.id}})
    assert not any(code.id in key for key in keys(world.other))
    world.remove("b", "team")
    assert keys(world.other) == set()


def test_code_stays_where_the_records_of_others_cannot_be_read() -> None:
    world = World()
    code = world.submit("a", {"x.py": b"1"}, "team")
    world.other.put(layout.record("0" * 20), b"?")
    with away(world.other), pytest.raises(StoreUnavailable):
        world.remove("a", "team")
    assert layout.code(code.id) in keys(world.other)
    world.other.delete(layout.record("0" * 20))
    world.code.remove({"team": {code.id}})
    assert keys(world.other) == set()


def test_a_removal_that_dies_half_way_leaves_no_snapshot_without_its_files() -> None:
    world = World()
    code = world.submit("a", {f"{number}.py": bytes([number]) for number in range(20)})
    left, delete = 10, world.near.delete

    def failing(key: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailable("the process dies here")
        delete(key)

    world.near.delete = failing  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        world.remove("a")
    world.near.delete = delete  # type: ignore[method-assign]
    assert not world.of(FOLDER).has(code.id)
    again = world.submit("b", {f"{number}.py": bytes([number]) for number in range(20)})
    assert whole(world.near, again), "what had gone was sent again"
    world.remove("b")
    assert keys(world.near) == set()


@contextmanager
def away(store: MemoryStore) -> Iterator[None]:
    def get(*_: object) -> bytes:
        raise StoreUnavailable("it is away")

    store.get = get  # type: ignore[assignment]
    try:
        yield
    finally:
        del store.get


def test_whoever_waits_for_a_removal_in_a_far_store_holds_up_no_submission_to_the_folder() -> None:
    arrivals, waits, arrived = Arrivals(), threading.Event(), threading.Event()

    def submit_to_far() -> None:
        waits.set()
        arrivals.begin("team", "far")

    def submit_to_folder() -> None:
        arrivals.begin(FOLDER, "near")
        arrived.set()

    far, near = threading.Thread(target=submit_to_far), threading.Thread(target=submit_to_folder)
    with arrivals.still("team"):
        far.start()
        waits.wait()
        far.join(0.1)
        near.start()
        assert arrived.wait(5)
    far.join()
    near.join()

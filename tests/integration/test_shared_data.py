"""Contents of datasets passed on between the nodes of a gang: real sockets, a cache for each node, and a far store that
counts what is read from it."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.agent.attempt.gang import Channel
from stoker.agent.data.cache import Cache
from stoker.agent.data.downloading import PIECE_BYTES, Download, Tally, WantedContent
from stoker.agent.data.sharing import ContentDoor, Peers, greeting, proof_of
from stoker.model.run.report import SharePoint
from stoker.testing.fakes import MemoryStore


class Member(NamedTuple):
    """As much of orders as a channel reads."""

    run_id: str
    attempt: int
    node: int
    nodes: int


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__("far://store")
        self.read: Counter[str] = Counter()
        self.pause_s = 0.0

    def fetch(self, key: str, start: int, size: int) -> bytes:
        time.sleep(self.pause_s)
        self.read[key] += size
        return self.get(key, start, size)


class GangNode:
    def __init__(self, store: CountingStore, folder: Path, number: int, nodes: int) -> None:
        self.cache = Cache(folder / str(number))
        self.cache.make()
        self.peers = Peers(Channel(store, Member("000001", 1, number, nodes)), self.cache, lambda: None)  # type: ignore[arg-type]  # the four that it reads
        self.tally = Tally()
        self.store = store

    def download(self, wanted: list[WantedContent]) -> None:
        Download(self.cache, self.store.fetch, lambda: None, lambda _kind, _text: None, self.tally, self.peers).run(
            wanted
        )

    def has(self, wanted: list[WantedContent]) -> bool:
        paths = [Path(self.cache.object(one.sha256)) for one in wanted]
        return all(
            hashlib.sha256(path.read_bytes()).hexdigest() == one.sha256 for path, one in zip(paths, wanted, strict=True)
        )


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


Gang = Callable[[int], list[GangNode]]


@pytest.fixture
def gang(store: CountingStore, tmp_path: Path) -> Iterator[Gang]:
    made: list[GangNode] = []

    def make(nodes: int) -> list[GangNode]:
        made.extend(GangNode(store, tmp_path, number, nodes) for number in range(nodes))
        return made

    yield make
    for node in made:
        node.peers.close()


def put(store: CountingStore, count: int, size: int) -> list[WantedContent]:
    wanted = []
    for number in range(count):
        data = hashlib.sha256(str(number).encode()).digest() * (size // 32)
        sha256 = hashlib.sha256(data).hexdigest()
        store.put(f"data/{sha256}", data)
        wanted.append(WantedContent(sha256, len(data), f"data/{sha256}", f"{number}.bin", sha256))
    return wanted


def at_once(nodes: list[GangNode], wanted: list[WantedContent]) -> None:
    failures: list[BaseException] = []

    def work(node: GangNode) -> None:
        try:
            node.download(wanted)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)


def test_a_dataset_that_all_nodes_need_is_read_from_the_store_about_once(store: CountingStore, gang: Gang) -> None:
    nodes, wanted = gang(4), put(store, 200, 20_000)
    store.pause_s = 0.1
    at_once(nodes, wanted)
    whole = sum(one.size_bytes for one in wanted)
    assert all(node.has(wanted) for node in nodes)
    assert sum(store.read.values()) < 2 * whole, "instead of four times"
    assert sum(node.tally.done_bytes for node in nodes) == sum(store.read.values())
    assert all(node.tally.done_bytes + node.tally.passed_bytes == whole for node in nodes)


def test_a_large_content_is_passed_on_while_it_is_downloaded(store: CountingStore, gang: Gang) -> None:
    nodes, wanted = gang(2), put(store, 1, 6 * PIECE_BYTES)
    store.pause_s = 0.2
    at_once(nodes, wanted)
    assert all(node.has(wanted) for node in nodes)
    assert sum(store.read.values()) <= 8 * PIECE_BYTES, "instead of twelve"


def test_a_replacement_has_its_data_from_the_survivors(store: CountingStore, gang: Gang) -> None:
    (first, *others), wanted = gang(3), put(store, 100, 20_000)
    for node in others:
        node.download(wanted)
    store.read.clear()
    at_once([first, *others], wanted)
    assert first.has(wanted)
    assert not store.read


def test_a_node_that_is_gone_costs_nothing_but_its_contents(store: CountingStore, gang: Gang) -> None:
    (first, second, gone), wanted = gang(3), put(store, 60, 20_000)
    gone.peers.begin([])
    gone.peers.close()
    began = time.monotonic()
    at_once([first, second], wanted)
    assert first.has(wanted) and second.has(wanted)
    assert time.monotonic() - began < 30


def test_a_node_that_never_comes_is_not_waited_for_long(store: CountingStore, gang: Gang) -> None:
    (alone, _), wanted = gang(2), put(store, 40, 20_000)
    alone.download(wanted)
    assert alone.has(wanted)
    assert sum(store.read.values()) == sum(one.size_bytes for one in wanted)


def _pieces(data: bytes, pause_s: float) -> list[bytes]:
    return [bytes([one]) for one in data] if pause_s else [data]


@contextmanager
def lying(store: CountingStore, number: int, answer: Callable[[bytes], bytes], pause_s: float = 0.0) -> Iterator[None]:
    """Something that has the secret of a node and answers whatever it wants; with a pause, byte by byte."""
    door = ContentDoor.__new__(ContentDoor)
    door.secret = b"s" * 32
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            with line:
                line.sendall(greeting(door.secret) + b"n" * 32)
                request = b""
                while len(request) < 80 and (piece := line.recv(80 - len(request))):
                    request += piece
                with suppress(OSError):  # nobody listens any more
                    for piece in _pieces(answer(request), pause_s):
                        line.sendall(piece)
                        time.sleep(pause_s)

    threading.Thread(target=serve, daemon=True).start()
    point = SharePoint(number, ("127.0.0.1",), listener.getsockname()[1], door.secret.hex())
    Channel(store, Member("000001", 1, number, 2)).tell("share", point)  # type: ignore[arg-type]  # as above
    try:
        yield
    finally:
        listener.close()


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda request: b"1" + b"x" * int.from_bytes(request[-8:], "big"), id="other bytes"),
        pytest.param(lambda _: b"1" + b"x", id="too few bytes"),
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: b"7" * 100, id="nonsense"),
    ],
)
def test_what_a_node_sends_wrongly_is_read_from_the_store(
    store: CountingStore, gang: Gang, answer: Callable[[bytes], bytes]
) -> None:
    (node, _), wanted = gang(2), put(store, 40, 20_000)
    with lying(store, 1, answer):
        node.download(wanted)
    assert node.has(wanted)


def test_a_node_that_sends_byte_by_byte_is_not_waited_for(store: CountingStore, gang: Gang) -> None:
    (node, _), wanted = gang(2), put(store, 40, 20_000)
    began = time.monotonic()
    with lying(store, 1, lambda request: b"1" + b"x" * int.from_bytes(request[-8:], "big"), pause_s=0.01):
        node.download(wanted)
    assert node.has(wanted)
    assert time.monotonic() - began < 30, "20 kB at 100 bytes/s would take 200 s"


def asked(port: int, secret: bytes, sha256: str, size: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        greeting = line.recv(64, socket.MSG_WAITALL)
        request = bytes.fromhex(sha256) + (0).to_bytes(8, "big") + size.to_bytes(8, "big")
        line.sendall(proof_of(secret, greeting[32:], request) + request)
        found = b""
        while piece := line.recv(1 << 16):
            found += piece
        return found


def test_a_stranger_gets_nothing_and_a_node_only_what_the_attempt_needs(store: CountingStore, gang: Gang) -> None:
    (node, _), wanted = gang(2), put(store, 2, 320)
    node.download(wanted)
    node.peers.close()
    door = ContentDoor(node.cache)
    door.allow([wanted[0].sha256])
    try:
        assert asked(door.port, door.secret, wanted[0].sha256, 320)[:1] == b"1"
        assert asked(door.port, door.secret, wanted[1].sha256, 320) == b"0", "a content of another run"
        assert asked(door.port, b"guessed", wanted[0].sha256, 320) == b""
    finally:
        door.close()

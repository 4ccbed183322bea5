"""Objects are returned in the requested order, however they were downloaded."""

import threading

import pytest

from stoker.errors import Missing
from stoker.stores.transfer.disk import SMALL_BYTES, open_in_order
from stoker.testing.fakes import MemoryStore


class Slow(MemoryStore):
    """A remote store, which records how many concurrent requests it had."""

    def __init__(self) -> None:
        super().__init__("https://far")
        self.at_once = 0
        self.most = 0
        self._lock = threading.Lock()
        self.met = threading.Barrier(4, timeout=20)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        with self._lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        if key < "4":
            self.met.wait()  # these can only continue together
        try:
            return super().get(key, start, size)
        finally:
            with self._lock:
                self.at_once -= 1


def test_small_objects_of_a_far_store_are_fetched_together_and_come_in_order() -> None:
    store = Slow()
    names = [f"{n}" for n in range(10)]
    for name in names:
        store.put(name, name.encode() * 3)
    assert [one.read() for one in open_in_order(store, [(name, 3) for name in names])] == [
        n.encode() * 3 for n in names
    ]
    assert 4 <= store.most <= 8


def test_a_large_object_is_read_in_pieces() -> None:
    store = MemoryStore("https://far")
    store.put("9", b"x" * (SMALL_BYTES + 1))
    (stream,) = open_in_order(store, [("9", SMALL_BYTES + 1)])
    assert stream.read(5) == b"xxxxx"
    assert len(stream.read()) == SMALL_BYTES - 4


def test_no_more_is_fetched_than_was_said_to_be_there() -> None:
    """The size of an object may be a node's claim, and it may have any number of bytes."""
    store = MemoryStore("https://far")
    store.put("9", b"x" * 5000)
    store.put("8", b"x" * 5000)
    assert [one.read() for one in open_in_order(store, [("9", 5), ("8", 0)])] == [b"xxxxx", b""]


@pytest.mark.parametrize("url", ["memory:", "https://far"])
def test_one_that_is_missing_is_missing_when_its_turn_comes(url: str) -> None:
    store = MemoryStore(url)
    store.put("5", b"here")
    found = open_in_order(store, [("5", 4), ("6", 4)])
    assert next(found).read() == b"here"
    with pytest.raises(Missing):
        next(found).read()

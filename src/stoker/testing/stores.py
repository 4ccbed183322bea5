"""The contract of every store. A plug-in author inherits it and says how to create one:

class TestMyStore(StoreContract):
    def make(self, folder: Path) -> Store:
        return MyStore(folder)
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from stoker.errors import AlreadyThere, Missing, StoreFailed
from stoker.stores import Store

T = TypeVar("T")

_THREADS = 8
_BAD_KEYS = ["", "/", "/absolute", "..", "../up", "a/../../up", "a/..", ".", "a/./b", "a//b", "a/", "nul\0"]


class StoreContract:
    """Every method is a test; `make` returns an empty store that may use `folder`."""

    steps = 100  # repetitions to catch a race: fewer for a store over a network

    def make(self, folder: Path) -> Store:
        raise NotImplementedError

    listed = 1_100  # objects in one listing: more than one page of a service

    def again(self, store: Store) -> Store:
        """The same store as seen by another process, without caches."""
        return store

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return self.make(tmp_path / "store")

    def test_gives_back_what_was_put(self, store: Store) -> None:
        store.put("a/b", b"bytes")
        assert store.get("a/b") == b"bytes"

    def test_an_empty_object_is_there(self, store: Store) -> None:
        store.put("empty", b"")
        assert store.get("empty") == store.get("empty", 0, 4) == store.get("empty", 7) == b""
        assert [(one.key, one.size_bytes) for one in store.list("")] == [("empty", 0)]

    @pytest.mark.parametrize(
        ("start", "size", "expected"),
        [
            (0, 4, b"0123"),
            (3, 4, b"3456"),
            (8, 4, b"89"),
            (10, 4, b""),
            (99, 4, b""),
            (0, 0, b""),
            (4, None, b"456789"),
            (10, None, b""),
            (99, None, b""),
            (0, 1 << 40, b"0123456789"),
        ],
    )
    def test_a_range_stops_where_the_object_ends(
        self, store: Store, start: int, size: int | None, expected: bytes
    ) -> None:
        store.put("digits", b"0123456789")
        assert store.get("digits", start, size) == expected

    @pytest.mark.parametrize(("start", "size"), [(0, 3_000_000), (1_500_000, 1_000_000), (2_999_999, 1)])
    def test_a_stream_gives_what_a_read_gives(self, store: Store, start: int, size: int) -> None:
        data = os.urandom(3_000_000)
        store.put("large", data)
        assert b"".join(map(bytes, store.stream("large", start, size))) == data[start : start + size]

    def test_a_stream_ends_where_the_object_does(self, store: Store) -> None:
        store.put("large", b"0123456789")
        assert b"".join(map(bytes, store.stream("large", 4, 100))) == b"456789"
        assert b"".join(map(bytes, store.stream("large", 10, 100))) == b""
        with pytest.raises(Missing):
            b"".join(map(bytes, store.stream("other", 0, 100)))

    def test_a_stream_that_is_left_in_the_middle_does_no_harm(self, store: Store) -> None:
        store.put("large", bytes(3_000_000))
        pieces = store.stream("large", 0, 3_000_000)
        next(pieces)
        del pieces
        assert store.get("large", 0, 2) == b"\0\0"

    def test_a_key_that_is_not_there_is_missing(self, store: Store) -> None:
        store.put("a/b/c", b"x")
        for key in ("nothing", "a", "a/b", "a/b/c/d", "a/b/nothing"):
            with pytest.raises(Missing):
                store.get(key)
            with pytest.raises(Missing):  # the cheapest existence test
                store.get(key, 0, 0)

    def test_put_replaces(self, store: Store) -> None:
        store.put("key", b"a longer first version")
        store.put("key", b"second")
        assert store.get("key") == b"second"

    def test_put_takes_a_file(self, store: Store) -> None:
        data = os.urandom(3 << 20)
        store.put("big", io.BytesIO(data))
        assert store.get("big") == data
        assert store.get("big", 2 << 20, 100) == data[2 << 20 : (2 << 20) + 100]

    def test_a_file_that_fails_to_be_read_leaves_the_old_object(self, store: Store) -> None:
        store.put("key", b"old")
        with pytest.raises(ValueError, match="broken off"):
            store.put("key", _BrokenOff(b"new and long" * 100_000))
        assert store.get("key") == b"old"
        assert [one.key for one in store.list("")] == ["key"]

    def test_only_new_refuses_a_key_that_is_taken(self, store: Store) -> None:
        store.put("key", b"first", only_new=True)
        with pytest.raises(AlreadyThere):
            store.put("key", b"second", only_new=True)
        assert store.get("key") == b"first"

    def test_only_new_lets_one_of_many_threads_win(self, store: Store) -> None:
        def attempt(number: int) -> bool:
            try:
                store.put("lock/key", str(number).encode(), only_new=True)
            except AlreadyThere:
                return False
            return True

        won = _in_threads(attempt)
        assert won.count(True) == 1
        assert store.get("lock/key") == str(won.index(True)).encode()

    def test_readers_see_one_whole_version(self, store: Store) -> None:
        versions = [bytes([number]) * (1000 + 50_000 * number) for number in range(4)]
        store.put("key", versions[0])
        done = threading.Event()

        def write() -> None:
            for number in range(self.steps):
                store.put("key", versions[number % 4])
            done.set()

        def read() -> list[bytes]:
            seen = [store.get("key")]
            while not done.is_set():
                seen.append(store.get("key"))
            return [data for data in seen if data not in versions]

        with ThreadPoolExecutor(_THREADS) as pool:
            torn = [pool.submit(read) for _ in range(_THREADS - 1)]
            pool.submit(write).result()
            assert [data for result in torn for data in result.result()] == []

    def test_append_begins_and_goes_on(self, store: Store) -> None:
        assert store.append("log", 0, b"one ") == 4
        assert store.append("log", 4, b"two") == 7
        assert store.get("log") == b"one two"

    def test_an_append_repeated_changes_nothing(self, store: Store) -> None:
        store.append("log", 0, b"one ")
        store.append("log", 4, b"two ")
        assert store.append("log", 0, b"one ") == 8
        assert store.append("log", 4, b"two ") == 8
        assert store.get("log") == b"one two "

    def test_an_append_that_overlaps_adds_only_what_is_new(self, store: Store) -> None:
        store.append("log", 0, b"one t")
        assert store.append("log", 4, b"two three") == 13
        assert store.get("log") == b"one two three"

    def test_bytes_already_there_are_kept(self, store: Store) -> None:
        store.append("log", 0, b"first")
        assert store.append("log", 0, b"FIRST and more") == 14
        assert store.get("log") == b"first and more"

    def test_an_append_past_the_end_is_refused_and_leaves_no_trace(self, store: Store) -> None:
        store.append("log", 0, b"one")
        with pytest.raises(StoreFailed):
            store.append("log", 4, b"five")
        with pytest.raises(StoreFailed):
            store.append("new", 1, b"x")
        assert store.get("log") == b"one"
        assert [one.key for one in store.list("")] == ["log"]

    def test_an_append_of_nothing_makes_an_empty_object(self, store: Store) -> None:
        assert store.append("log", 0, b"") == 0
        assert store.get("log") == b""

    def test_an_append_goes_on_after_a_put(self, store: Store) -> None:
        store.put("log", b"one")
        assert store.append("log", 3, b" two") == 7
        assert store.get("log") == b"one two"

    def test_a_reader_of_a_growing_object_sees_a_beginning_of_it(self, store: Store) -> None:
        whole = os.urandom(2000 * self.steps)
        store.append("log", 0, b"")

        def write() -> None:
            for at in range(0, len(whole), 1000):
                store.append("log", at, whole[at : at + 1000])

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            while not writing.done():
                seen = store.get("log")
                assert whole.startswith(seen)
            writing.result()
        assert store.get("log") == whole

    def test_an_object_grows_past_every_boundary(self, store: Store) -> None:
        """Stores that cannot append compose objects from parts."""
        whole = os.urandom(5 << 19)
        for at in range(0, len(whole), 300_000):
            assert store.append("logs/0.log", at, whole[at : at + 300_000]) == min(at + 300_000, len(whole))
        assert store.get("logs/0.log") == whole
        for start, size in ((0, 10), ((1 << 20) - 5, 10), (1 << 20, 7), ((2 << 20) - 1, 2), ((2 << 20) + 9, 1 << 22)):
            assert store.get("logs/0.log", start, size) == whole[start : start + size], start
        assert store.get("logs/0.log", len(whole), 5) == b""
        assert [(one.key, one.size_bytes) for one in store.list("logs")] == [("logs/0.log", len(whole))]
        assert list(store.list("logs/0.log")) == []

    def test_a_grown_object_is_replaced_and_deleted_as_a_whole(self, store: Store) -> None:
        store.append("log", 0, bytes(5 << 19))
        store.put("log", b"x" * (1 << 20))
        assert store.get("log") == b"x" * (1 << 20)
        assert store.append("log", 1 << 20, b"more") == (1 << 20) + 4
        assert store.get("log", (1 << 20) - 1) == b"xmore"
        store.delete("log")
        with pytest.raises(Missing):
            store.get("log", 1 << 20)
        assert list(store.list("")) == []
        store.append("log", 0, b"y" * (1 << 20))
        assert len(store.get("log")) == 1 << 20

    def test_an_append_goes_on_after_a_large_put(self, store: Store) -> None:
        store.put("log", b"a" * (3 << 20))
        assert store.append("log", 3 << 20, b"end") == (3 << 20) + 3
        assert store.get("log") == b"a" * (3 << 20) + b"end"

    def test_another_process_goes_on_where_the_first_has_ended(self, store: Store) -> None:
        store.append("log", 0, b"one ")
        again = self.again(store)
        assert again.append("log", 0, b"one two") == 7
        assert again.get("log") == b"one two"

    def test_lists_many_keys(self, store: Store) -> None:
        number = self.listed
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda n: store.put(f"many/{n:05d}", b""), range(number)))
        assert sorted(one.key for one in store.list("many")) == [f"many/{n:05d}" for n in range(number)]

    def test_a_key_may_have_a_thousand_characters(self, store: Store) -> None:
        key = "/".join(["k" * 99] * 10)
        assert len(key) == 999
        store.put(key, b"long")
        assert store.get(key) == b"long"
        assert [one.key for one in store.list("")] == [key]

    def test_an_etag_changes_with_the_content(self, store: Store) -> None:
        store.put("key", b"first")
        (before,) = store.list("")
        assert next(store.list("")).etag == before.etag
        time.sleep(0.02)  # file systems' clocks tick
        store.put("key", b"other")
        (after,) = store.list("")
        assert before.etag
        assert after.etag != before.etag

    def test_a_large_stream_arrives_whole(self, store: Store) -> None:
        data = os.urandom(20 << 20)
        store.put("large", io.BytesIO(data))
        assert store.get("large") == data
        assert store.get("large", 17 << 20, 5) == data[17 << 20 : (17 << 20) + 5]

    def test_lists_what_is_below_a_prefix_with_size_and_time(self, store: Store) -> None:
        before = time.time() - 5  # clocks of file systems lag, those of services differ
        for key in ("runs/1/a", "runs/1/b/c", "runs/10/a", "other"):
            store.put(key, key.encode())
        found = list(store.list("runs/1/"))
        assert sorted((one.key, one.size_bytes) for one in found) == [("runs/1/a", 8), ("runs/1/b/c", 10)]
        assert all(before <= one.changed_at <= time.time() + 5 for one in found)
        assert {one.key for one in store.list("runs/1")} == {"runs/1/a", "runs/1/b/c"}
        assert {one.key for one in store.list("")} == {"runs/1/a", "runs/1/b/c", "runs/10/a", "other"}
        assert list(store.list("nothing")) == []
        assert list(store.list("runs/1/a")) == []

    def test_a_deleted_object_is_missing(self, store: Store) -> None:
        store.put("a/b", b"x")
        store.put("a/c", b"y")
        store.delete("a/b")
        with pytest.raises(Missing):
            store.get("a/b")
        assert [one.key for one in store.list("")] == ["a/c"]

    def test_deleting_what_is_not_there_is_fine(self, store: Store) -> None:
        store.put("a/b", b"x")
        for key in ("nothing", "a", "a/nothing", "a/b/c", "x/y/z"):
            store.delete(key)
        assert store.get("a/b") == b"x"

    @pytest.mark.parametrize(
        "key", ["ünï/cødé 日本語", "with space", "a:b?c*d", "…/…", "#", "%2e%2e", "a+b c", ".hidden"]
    )
    def test_any_text_can_be_a_key(self, store: Store, key: str) -> None:
        store.put(key, b"x")
        assert store.get(key) == b"x"
        assert [one.key for one in store.list("")] == [key]
        store.delete(key)
        assert list(store.list("")) == []

    @pytest.mark.parametrize("key", _BAD_KEYS)
    def test_a_key_that_could_lead_elsewhere_is_refused(self, store: Store, key: str) -> None:
        uses: list[Callable[[], object]] = [
            lambda: store.get(key),
            lambda: store.put(key, b"x"),
            lambda: store.append(key, 0, b"x"),
            lambda: store.delete(key),
        ]
        if key and key != "a/":  # which are prefixes
            uses.append(lambda: list(store.list(key)))
        for use in uses:
            with pytest.raises(StoreFailed):
                use()
        assert list(store.list("")) == []

    def test_many_threads_do_not_disturb_each_other(self, store: Store) -> None:
        steps = min(self.steps, 20)

        def work(number: int) -> bytes:
            for step in range(steps):
                store.put(f"shared/{number}", str(step).encode())
                store.append(f"logs/{number}.log", step, b"x")
                list(store.list("shared"))
            return store.get(f"shared/{number}") + store.get(f"logs/{number}.log")

        assert _in_threads(work) == [b"%d" % (steps - 1) + b"x" * steps] * _THREADS

    def test_writing_beside_a_delete_never_fails(self, store: Store) -> None:
        def work(number: int) -> None:
            for step in range(self.steps):
                key = f"a/b/c/{number}"
                if number % 2:
                    store.put(key, b"x")
                else:
                    store.append(key, 0, b"x")
                assert store.get(key) == b"x", step
                store.delete(key)

        _in_threads(work)
        assert list(store.list("")) == []


class _BrokenOff(io.BytesIO):
    """Fails after a part was read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() or size is None or size < 0:
            raise ValueError("broken off")
        return super().read(min(size, 1000))


def _in_threads(work: Callable[[int], T]) -> list[T]:
    """The results of `work` for each number, all started at the same moment."""
    ready = threading.Barrier(_THREADS)

    def begin(number: int) -> T:
        ready.wait(10)
        return work(number)

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(begin, range(_THREADS)))

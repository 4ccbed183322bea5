"""The node's cache of contents: whole or not at all, shared, bounded, and found out when it is wrong."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.agent.data import downloading
from stoker.agent.data.cache import Cache, Held, Hold, held, room, to_remove
from stoker.agent.data.downloading import Download, Tally, WantedContent
from stoker.errors import Corrupt, Missing, StoreFailed, StoreUnavailable


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wanted(data: bytes) -> WantedContent:
    return WantedContent(sha(data), len(data), sha(data), "a file", sha(data))


class Source:
    """Contents by key, with the requests that came."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = {sha(data): data for data in contents}
        self.asked: list[tuple[str, int, int]] = []

    def get(self, key: str, start: int, size: int) -> bytes:
        self.asked.append((key, start, size))
        if key not in self.contents:
            raise Missing(f"the store has no `{key}`")
        return self.contents[key][start : start + size]


def silent(kind: str, text: str) -> None:
    """Nobody listens."""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path / "cache")
    cache.make()
    return cache


def fetch(cache: Cache, source: Source, *contents: bytes, tally: Tally | None = None) -> Download:
    work = Download(cache, source.get, lambda: None, silent, tally or Tally())
    work.run([wanted(data) for data in contents])
    return work


def test_what_was_fetched_is_there_and_is_not_asked_for_again(cache: Cache) -> None:
    source = Source(b"one", b"two", b"")
    fetch(cache, source, b"one", b"two", b"")
    assert [Path(cache.object(sha(data))).read_bytes() for data in (b"one", b"two", b"")] == [b"one", b"two", b""]
    asked = len(source.asked)
    fetch(cache, source, b"one", b"two", b"")
    assert len(source.asked) == asked
    assert list(cache.parts.iterdir()) == []


@pytest.mark.parametrize("there", [0, 1, downloading.PIECE_BYTES, downloading.PIECE_BYTES + 17])
def test_a_part_that_was_left_is_resumed(cache: Cache, there: int) -> None:
    data = random.Random(1).randbytes(3 * downloading.PIECE_BYTES + 5)
    (cache.parts / sha(data)).write_bytes(data[:there])
    tally = Tally()
    fetch(cache, Source(data), data, tally=tally)
    assert tally.done_bytes == len(data) - there
    assert Path(cache.object(sha(data))).read_bytes() == data


def test_a_part_with_wrong_bytes_is_fetched_from_its_beginning(cache: Cache) -> None:
    (cache.parts / sha(b"right")).write_bytes(b"wr")
    fetch(cache, Source(b"right"), b"right")
    assert Path(cache.object(sha(b"right"))).read_bytes() == b"right"


def test_bytes_with_another_hash_are_never_in_the_cache(cache: Cache) -> None:
    source = Source()
    source.contents[sha(b"right")] = b"wrong"
    with pytest.raises(Corrupt, match="`a file`"):
        fetch(cache, source, b"right")
    assert not cache.has(sha(b"right"), 5)
    assert list(cache.parts.iterdir()) == []


def test_a_content_that_is_too_short_or_gone_is_reported(cache: Cache) -> None:
    source = Source()
    source.contents[sha(b"right")] = b"ri"
    with pytest.raises(Corrupt, match=r"`a file`.*\b2\b.*\b5\b"):
        fetch(cache, source, b"right")
    with pytest.raises(Missing, match="`a file`"):
        fetch(cache, Source(), b"other")


def test_a_store_that_is_away_for_a_while_is_asked_again(cache: Cache) -> None:
    source = Source(b"one")
    told: list[str] = []

    def get(key: str, start: int, size: int) -> bytes:
        if len(told) == 0 or len(source.asked) < 1:
            source.asked.append((key, start, size))
            raise StoreUnavailable("nobody answers")
        return source.get(key, start, size)

    Download(cache, get, lambda: None, lambda _, text: told.append(text), Tally()).run([wanted(b"one")])
    assert told == ["could not read the data, retrying: nobody answers"]
    assert cache.has(sha(b"one"), 3)


def test_a_store_that_stays_away_fails_and_leaves_the_part(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "TRY_FOR_S", 0.3)
    data = b"x" * (2 * downloading.PIECE_BYTES)

    def get(key: str, start: int, size: int) -> bytes:
        if start:
            raise StoreUnavailable("nobody answers")
        return data[start : start + size]

    with pytest.raises(StoreUnavailable, match="nobody answers"):
        Download(cache, get, lambda: None, silent, Tally()).run([wanted(data)])
    assert (cache.parts / sha(data)).stat().st_size == downloading.PIECE_BYTES
    assert not cache.has(sha(data), len(data))


def test_a_content_without_a_hash_is_known_by_what_pins_it(cache: Cache) -> None:
    source = Source(b"one")
    one = WantedContent("f" * 64, 3, sha(b"one"), "a file")
    for asked in (1, 1):
        work = Download(cache, source.get, lambda: None, silent, Tally())
        work.run([one])
        assert work.found == {"f" * 64: sha(b"one")}
        assert len(source.asked) == asked
    assert cache.pinned("f" * 64) == (sha(b"one"), 3)


@pytest.mark.parametrize("change", ["bytes", "size", "time", "mode", "gone"])
def test_a_content_that_was_changed_by_hand_is_found(cache: Cache, change: str) -> None:
    fetch(cache, Source(b"right"), b"right")
    cache.settle([sha(b"right")])
    path = Path(cache.object(sha(b"right")))
    path.chmod(0o644)
    changes: dict[str, Callable[[], object]] = {
        "bytes": lambda: path.write_bytes(b"wrong"),
        "size": lambda: path.write_bytes(b"right and more"),
        "time": lambda: os.utime(path),
        "mode": lambda: path.chmod(0o600),
        "gone": path.unlink,
    }
    changes[change]()
    assert cache.has(sha(b"right"), 5) is (change in ("time", "mode"))
    assert cache.repaired == ([sha(b"right")] if change in ("bytes", "size") else [])
    fetch(cache, Source(b"right"), b"right")
    assert path.read_bytes() == b"right"


def test_what_may_not_be_on_the_disk_yet_is_hashed_before_it_is_used(cache: Cache) -> None:
    """As after a loss of power: size and times are right, the bytes are not."""
    fetch(cache, Source(b"right"), b"right")
    path = Path(cache.object(sha(b"right")))
    before = path.stat()
    path.chmod(0o600)
    path.write_bytes(b"\0" * 5)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(before.st_mode)
    assert not cache.has(sha(b"right"), 5)


# --- room

contents = st.builds(
    Held,
    st.integers(0, 30).map(str),
    st.integers(0, 50),
    st.integers(0, 1000),
    st.integers(1, 3),
)


@given(
    st.lists(contents, max_size=20, unique_by=lambda one: one.sha256),
    st.dictionaries(st.integers(0, 40).map(str), st.integers(0, 50), max_size=10),
    st.integers(0, 600),
)
def test_only_what_nobody_uses_goes_the_oldest_first_and_no_more_than_has_to(
    there: list[Held], wants: dict[str, int], limit: int
) -> None:
    gone = set(to_remove(there, wants, limit))
    by_name = {one.sha256: one for one in there}
    free = [one for one in there if one.links == 1 and one.sha256 not in wants]
    assert all(by_name[name] in free for name in gone)
    kept = [one for one in free if one.sha256 not in gone]
    assert all(by_name[name].used_ns <= one.used_ns for name in gone for one in kept)

    def size_without(names: set[str]) -> int:
        coming = sum(size for name, size in wants.items() if name not in by_name)
        return coming + sum(one.size_bytes for one in there if one.sha256 not in names)

    assert size_without(gone) <= limit or not kept
    if gone:
        newest = max(gone, key=lambda name: by_name[name].used_ns)
        ties = {name for name in gone if by_name[name].used_ns == by_name[newest].used_ns}
        assert any(size_without(gone - {name}) > limit for name in ties)


def test_the_oldest_makes_way_and_what_a_run_uses_stays(cache: Cache, tmp_path: Path) -> None:
    hold = Hold(cache, "n1")
    hold.take()
    old, used, new = b"o" * 100, b"u" * 100, b"n" * 100
    fetch(cache, Source(old, used), old, used)
    cache.use(sha(old), str(hold.trees / "old"))
    (hold.trees / "old").unlink()
    os.utime(cache.object(sha(used)), ns=(0, Path(cache.object(sha(used))).stat().st_mtime_ns))
    os.link(cache.object(sha(used)), hold.trees / "used")
    hold.reserve({sha(new): 100}, 250)
    assert {one.sha256 for one in held(cache)} == {sha(used)}
    with pytest.raises(StoreFailed, match=r"needs 0\.0 MB more in the cache"):
        hold.reserve({sha(new): 200}, 250)
    hold.release()
    assert not hold.folder.exists()


def test_two_nodes_count_each_others_wants(cache: Cache) -> None:
    first, second = Hold(cache, "n1"), Hold(cache, "n2")
    first.take()
    second.take()
    first.reserve({"a" * 64: 60}, 100)
    with pytest.raises(StoreFailed):
        second.reserve({"b" * 64: 60}, 100)
    second.reserve({"a" * 64: 60}, 100)
    first.release()
    second.release()


def test_room_is_what_the_limit_leaves_beside_what_is_in_use(cache: Cache) -> None:
    hold = Hold(cache, "n1")
    hold.take()
    fetch(cache, Source(b"u" * 100, b"f" * 50), b"u" * 100, b"f" * 50)
    os.link(cache.object(sha(b"u" * 100)), hold.trees / "used")
    assert room(cache, 1000) == 900
    hold.release()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["fetch", "damage", "remove", "part", "settle"]), max_size=12), st.integers(0, 99))
def test_whatever_happened_before_a_fetch_gives_the_right_bytes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int
) -> None:
    cache, dice = Cache(tmp_path_factory.mktemp("c")), random.Random(seed)
    cache.make()
    data = dice.randbytes(dice.choice([0, 1, 5000]))
    path = Path(cache.object(sha(data)))
    for step in steps:
        if step == "fetch":
            fetch(cache, Source(data), data)
        elif step == "damage" and path.exists():
            path.chmod(0o600)
            path.write_bytes(dice.randbytes(len(data) + dice.choice([0, 1])))
        elif step == "remove":
            path.unlink(missing_ok=True)
        elif step == "part":
            (cache.parts / sha(data)).write_bytes(dice.choice([data[:7], b"nonsense", data * 2]))
        elif step == "settle":
            cache.settle([sha(data)], whole_disk=False)
    # A settle after damage is nobody's verification: only what was verified may be trusted.
    fetch(cache, Source(data), data)
    assert path.read_bytes() == data

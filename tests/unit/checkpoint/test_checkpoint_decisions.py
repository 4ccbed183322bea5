"""When to save, what to keep and what a manifest must say: the pure parts."""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.checkpoint.read import format
from stoker.checkpoint.read.format import CheckpointManifest, FileEntry
from stoker.checkpoint.read.shelf import SavedCheckpoint, landmarks, to_keep
from stoker.checkpoint.save.take import Cost, Interval, Since, best_interval_s, due, parse, seconds
from stoker.checkpoint.surroundings import GRACE_S, NoticeFile
from stoker.errors import Unreadable

# The interval


@pytest.mark.parametrize(
    ("every", "means"),
    [
        (100, Interval(steps=100)),
        ("1 epoch", Interval(epochs=1)),
        ("3 epochs", Interval(epochs=3)),
        ("30s", Interval(seconds=30)),
        ("1.5 h", Interval(seconds=5400)),
        ("auto", Interval()),
    ],
)
def test_interval_is_read_as_it_is_written(every: int | str, means: Interval) -> None:
    assert parse(every) == means
    assert parse(every).auto is (every == "auto")


@pytest.mark.parametrize("every", [0, -1, True, "0 epochs", "soon", "", "5 days", "-3s"])
def test_interval_that_makes_no_sense_is_refused_with_what_does(every: int | str) -> None:
    with pytest.raises(ValueError, match="1 epoch"):
        parse(every)


def test_auto_is_young_and_dalys_square_root() -> None:
    assert best_interval_s(Cost(0.5, 2.0), 1.0, 300) == pytest.approx(math.sqrt(2 * 0.5 * 3600))


def test_auto_is_bounded_by_the_work_one_is_willing_to_lose() -> None:
    assert best_interval_s(Cost(10.0, 2.0), 0.01, 300) == 300
    assert best_interval_s(Cost(10.0, 2.0), 0.0, 300) == 300


def test_auto_does_not_ask_for_more_saves_than_can_be_written() -> None:
    assert best_interval_s(Cost(0.001, 90.0), 100.0, 60) == 180


costs = st.builds(Cost, st.floats(0, 100), st.floats(0, 100))


@given(costs, st.floats(0, 100), st.floats(1, 1e4), st.floats(1, 10))
def test_more_evictions_never_mean_fewer_saves(cost: Cost, rate: float, max_loss_s: float, more: float) -> None:
    assert best_interval_s(cost, rate * more, max_loss_s) <= best_interval_s(cost, rate, max_loss_s)


@pytest.mark.parametrize(
    ("interval", "since", "is_due"),
    [
        (Interval(steps=5), Since(4, 9, 1e9), False),
        (Interval(steps=5), Since(5, 0, 0), True),
        (Interval(epochs=1), Since(10**6, 0, 1e9), False),
        (Interval(epochs=1), Since(0, 1, 0), True),
        (Interval(seconds=30), Since(0, 0, 29.9), False),
        (Interval(seconds=30), Since(0, 0, 30), True),
        (Interval(), Since(0, 0, 59), False),
        (Interval(), Since(0, 0, 61), True),
    ],
)
def test_save_is_due_when_its_interval_has_passed(interval: Interval, since: Since, is_due: bool) -> None:
    assert due(interval, since, auto_s=60) is is_due


def test_numbers_are_seconds() -> None:
    assert seconds(90) == seconds("1.5m") == 90


# Retention

shelf = st.lists(st.floats() | st.none(), max_size=20).map(
    lambda found: [
        SavedCheckpoint(f"step-{n}", {} if value is None else {"loss": value}) for n, value in enumerate(found)
    ]
)


@given(shelf, st.integers(1, 5))
def test_newest_are_kept(there: list[SavedCheckpoint], keep: int) -> None:
    kept = to_keep(there, keep)
    assert kept == {one.name for one in there[-keep:]}


@given(shelf, st.integers(1, 5), st.sampled_from(["loss", "-loss"]))
def test_best_is_kept_besides_and_nothing_else(there: list[SavedCheckpoint], keep: int, best: str) -> None:
    kept = to_keep(there, keep, best)
    values = [one.metrics["loss"] for one in there if not math.isnan(one.metrics.get("loss", math.nan))]
    assert kept >= to_keep(there, keep)
    assert len(kept) <= min(len(there), keep) + 1
    if values:
        wanted = min(values) if best == "-loss" else max(values)
        assert wanted in [one.metrics.get("loss") for one in there if one.name in kept]


def test_keeping_none_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        to_keep([], 0)


# The manifest

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
entries = st.builds(FileEntry, st.integers(0, 2**50), st.from_regex(r"[0-9a-f]{64}", fullmatch=True))
written = st.builds(
    CheckpointManifest,
    step=st.integers(0, 10**12),
    epoch=st.integers(0, 10**6),
    saved_at=st.floats(0, 1e11),
    files=st.dictionaries(names, entries, max_size=5),
    metrics=st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3),
    ranks=st.integers(1, 1000),
)


@given(written)
def test_manifest_is_read_as_it_was_written(manifest: CheckpointManifest) -> None:
    assert format.load(manifest.dump()) == manifest


@given(written, st.data())
def test_cut_manifest_is_unreadable(manifest: CheckpointManifest, data: st.DataObject) -> None:
    whole = manifest.dump()
    with pytest.raises(Unreadable):
        format.load(whole[: data.draw(st.integers(0, len(whole) - 3))])


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "", "a//b", "..\\b"])
def test_manifest_does_not_lead_out_of_its_folder(name: str) -> None:
    document: dict[str, Any] = {
        "format": 1,
        "step": 1,
        "epoch": 0,
        "saved_at": 0,
        "tensors": {},
        "metrics": {},
        "ranks": 1,
    }
    document |= {"ranks": 1, "files": {name: {"size_bytes": 1, "sha256": "0"}}}
    text = json.dumps(document | {"own_sha256": sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()})
    with pytest.raises(Unreadable, match="not a file of this folder"):
        format.load(text.encode())


def test_manifest_of_a_later_format_says_so() -> None:
    with pytest.raises(Unreadable, match=r"\b2\b"):
        format.load(b'{"format": 2}')


# The notice


def test_notice_is_answered_once_and_one_that_comes_again_is_new(tmp_path: Path) -> None:
    file = tmp_path / "notice"
    assert not NoticeFile(str(file)).new()
    file.write_text('{"at": 10, "deadline": 40, "kind": "evict"}', encoding="utf-8")
    board = NoticeFile(str(file))
    assert board.new()
    board.answer(7, 0.5)
    assert json.loads((tmp_path / "notice.saved").read_text(encoding="utf-8")) == {"step": 7, "seconds": 0.5}
    board._next_look = 0
    assert not board.new()
    file.unlink()
    board._next_look = 0
    assert not board.new()
    file.write_text('{"at": 99, "deadline": 130, "kind": "evict"}', encoding="utf-8")
    board._next_look = 0
    assert board.new()


def post(file: Path, at: float, deadline: float, *, last: bool = False) -> None:
    words = {"at": at, "deadline": deadline, "kind": "evict", "last": last}
    file.with_suffix(".part").write_text(json.dumps(words), encoding="utf-8")
    file.with_suffix(".part").replace(file)


def test_notice_that_has_become_the_last_word_is_new_and_is_waited_for(tmp_path: Path) -> None:
    file, now = tmp_path / "notice", time.time()
    post(file, now, now + 30)
    board = NoticeFile(str(file))
    board.answer(7, 0.5)
    assert not board.hold(), "there is time to train on"
    post(file, now, now + 30, last=True)
    assert board.new(look_now=True)
    board.answer(8, 0.5)
    begun = time.monotonic()
    threading.Timer(0.3, file.unlink).start()
    assert board.hold()
    assert 0.2 < time.monotonic() - begun < 5, "until it is withdrawn"


def test_an_eviction_that_never_comes_is_not_waited_for_forever(tmp_path: Path) -> None:
    file, now = tmp_path / "notice", time.time()
    post(file, now - 60, now - GRACE_S + 0.2, last=True)
    board = NoticeFile(str(file))
    board.answer(8, 0.5)
    begun = time.monotonic()
    assert board.hold()
    assert time.monotonic() - begun < 5


def test_notice_that_is_half_written_counts(tmp_path: Path) -> None:
    (tmp_path / "notice").write_text("{", encoding="utf-8")
    assert NoticeFile(str(tmp_path / "notice")).new()


def test_outside_of_stoker_there_is_no_notice() -> None:
    assert not NoticeFile(None).new()


def test_nodes_that_remove_most_of_what_they_save_have_a_recent_step_in_common_whenever_they_are_looked_at() -> None:
    kept: list[str] = []
    looks = {}
    for save in range(1, 400):
        there = [*kept, f"step-{7 + 3 * save:09d}"]
        names = to_keep([SavedCheckpoint(name) for name in there], 3) | landmarks(there)
        kept = [name for name in there if name in names]
        looks[save] = set(kept)
        assert len(kept) <= 3 + 2 * 12
    for save, apart in itertools.product(range(50, 350), (1, 5, 20, 45)):
        both = looks[save] & looks[save + apart]
        assert both, (save, apart)
        lost = save - (int(max(both)[5:]) - 7) / 3
        assert lost <= 2 * apart + 4, (save, apart)

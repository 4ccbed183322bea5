"""The rate and the time left follow what was moved lately, and not what was there before."""

from __future__ import annotations

import pytest

from stoker.client.progress import TransferProgress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rate_and_time_left_follow_from_bytes_moved(clock: Clock) -> None:
    progress = TransferProgress(clock)
    progress.begin("sending", 10, 1000)
    for _ in range(5):
        clock.now += 1
        progress.moved(100, 1)
    seen = progress.standing()
    assert (seen.what, seen.files, seen.all_files, seen.size_bytes, seen.all_bytes) == ("sending", 5, 10, 500, 1000)
    assert seen.bytes_per_s == pytest.approx(100)
    assert seen.left_s == pytest.approx(5)


def test_what_was_there_already_does_not_make_the_rest_look_fast(clock: Clock) -> None:
    progress = TransferProgress(clock)
    progress.begin("sending", 2, 1100)
    progress.skipped(1000, 1)
    clock.now = 2
    progress.moved(50, 0)
    seen = progress.standing()
    assert (seen.size_bytes, seen.files) == (1050, 1)
    assert seen.bytes_per_s == pytest.approx(25)
    assert seen.left_s == pytest.approx(2)


def test_a_stall_shows_in_the_rate(clock: Clock) -> None:
    progress = TransferProgress(clock)
    progress.begin("getting", 1, 10_000)
    for _ in range(10):
        clock.now += 1
        progress.moved(100, 0)
    clock.now += 90
    assert progress.standing().bytes_per_s < 20


def test_before_anything_has_moved_nobody_can_tell_how_long_it_takes(clock: Clock) -> None:
    progress = TransferProgress(clock)
    progress.begin("getting", 1, 10)
    clock.now = 3
    assert progress.standing().left_s is None


def test_bytes_that_are_carried_again_are_not_counted_twice(clock: Clock) -> None:
    progress = TransferProgress(clock)
    progress.begin("sending", 1, 100)
    clock.now = 1
    progress.moved(60, 0)
    progress.moved(-60, 0)
    progress.moved(100, 1)
    assert progress.standing().size_bytes == 100

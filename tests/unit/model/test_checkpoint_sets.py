"""Which checkpoint counts, whoever is still writing."""

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from stoker.model.snapshot import SPAN, CheckpointSet, Entry, Fence, claim, fenced, retained, visible
from stoker.model.wire import dump, load
from stoker.model.workspace import layout

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def made(attempt: int, number: int, **metrics: float) -> CheckpointSet:
    return CheckpointSet(attempt, number, NOW, (), metrics=metrics)


def test_a_set_is_stored_as_it_was_sealed() -> None:
    entry = Entry('checkpoints/"seal":""}', sha256="0" * 64, size_bytes=1)
    plain = CheckpointSet(1, 1, NOW, (entry,), step=7.0, metrics={"loss": 0.5}, changed_ns={entry.path: 5})
    for one in (plain, replace(plain, saves={entry.path: 3})):
        sealed, words = one.seal_and_dump()
        assert load(CheckpointSet, words) == sealed == one.sealed
        assert load(CheckpointSet, words).whole
    assert words == dump(sealed)


def test_a_set_that_is_older_than_the_count_of_saves_is_still_whole() -> None:
    _, words = made(1, 1).seal_and_dump()
    assert b"saves" not in words and load(CheckpointSet, words).whole


def test_the_newest_set_of_the_newest_attempt_comes_first() -> None:
    assert visible([(1, 1), (2, 1), (1, 2)], []) == [(2, 1), (1, 2), (1, 1)]


def test_what_a_zombie_commits_after_the_next_attempt_began_does_not_count() -> None:
    fences = [Fence(2, 1, 7)]
    assert visible([(1, 6), (1, 7), (1, 8)], fences) == [(1, 7), (1, 6)]


def test_an_attempt_that_began_from_nothing_hides_everything_before_it() -> None:
    assert visible([(1, 1), (2, 1)], [Fence(2)]) == [(2, 1)]


def test_an_attempt_is_fenced_by_any_later_one() -> None:
    assert fenced(1, [Fence(1), Fence(3)])
    assert not fenced(3, [Fence(1), Fence(3)])


positions = st.tuples(st.integers(1, 5), st.integers(1, 9))


@given(st.sets(positions), st.lists(st.tuples(st.integers(2, 5), positions)))
def test_sets_of_attempts_that_no_fence_concerns_are_never_hidden(
    sets: set[tuple[int, int]], rows: list[tuple[int, tuple[int, int]]]
) -> None:
    fences = [Fence(attempt, *base) for attempt, base in rows]
    newest = max((fence.attempt for fence in fences), default=0)
    shown = visible(sets, fences)
    assert shown == sorted(shown, reverse=True)
    assert {one for one in sets if one[0] >= newest} <= set(shown)


def test_the_newest_are_kept_and_the_best_by_a_metric() -> None:
    sets = [made(1, n, acc=acc) for n, acc in enumerate([0.1, 0.9, 0.3, 0.2, 0.4], start=1)]
    assert retained(sets, 2) == {(1, 5), (1, 4)}
    assert retained(sets, 2, "acc") == {(1, 5), (1, 4), (1, 2)}
    assert retained(sets, 2, "-acc") == {(1, 5), (1, 4), (1, 1)}
    assert retained(sets, 2, "never-reported") == {(1, 5), (1, 4)}


@given(positions)
def test_a_sets_position_is_read_back_from_its_key(position: tuple[int, int]) -> None:
    assert layout.checkpoint_position(layout.checkpoint_set("r", *position)) == position


def test_a_machine_that_took_over_hides_what_an_earlier_one_of_its_attempt_commits_later() -> None:
    """The first had committed two sets when the second took over, and wakes up for a third."""
    second = Fence(1, 1, 2, incarnation=2)
    late, own = (1, 3), (1, SPAN + 1)
    assert visible([(1, 1), (1, 2), late, own], [claim(1), second]) == [own, (1, 2), (1, 1)]
    assert fenced(1, [claim(1), second])
    assert not fenced(1, [claim(1), second], incarnation=2)
    assert fenced(1, [second, claim(1, 3)], incarnation=2)
    assert fenced(1, [second, claim(2)], incarnation=2)


def test_a_machine_that_has_yet_to_find_its_base_hides_nothing() -> None:
    assert visible([(1, 1), (1, 2)], [claim(1), claim(1, 2, "mine")]) == [(1, 2), (1, 1)]


def test_the_next_attempt_resumes_from_the_newest_machine() -> None:
    fences = [claim(1), Fence(1, 1, 2, incarnation=2), claim(2)]
    assert visible([(1, 2), (1, 3), (1, SPAN + 4)], fences)[0] == (1, SPAN + 4)

"""Who is next: priority, then turns between people, and nobody waits forever."""

from __future__ import annotations

from stoker.engine.queue.order import CHARGE_S, HALF_LIFE_S, HIGH, LOW, STARVED_S, STEP_S, QueuedRun, decayed, ordered


def ids(waiting: list[QueuedRun], used: dict[str, float] | None = None) -> list[str]:
    return [one.id for one in ordered(waiting, used or {})]


def test_a_higher_priority_goes_first_and_the_older_run_of_two_alike() -> None:
    assert ids([QueuedRun("3"), QueuedRun("1", rank=LOW), QueuedRun("2"), QueuedRun("4", rank=HIGH)]) == [
        "4",
        "2",
        "3",
        "1",
    ]


def test_people_take_turns_although_one_of_them_came_first_with_many() -> None:
    many = [QueuedRun(f"a{number}", person="ada") for number in range(4)]
    few = [QueuedRun(f"b{number}", person="bob") for number in range(2)]
    assert ids([*many, *few]) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_whoever_has_used_little_is_next() -> None:
    waiting = [QueuedRun("1", person="ada"), QueuedRun("2", person="bob"), QueuedRun("3", person="bob")]
    assert ids(waiting, {"ada": 2.5 * CHARGE_S}) == ["2", "3", "1"]


def test_a_wide_run_counts_for_its_width() -> None:
    waiting = [QueuedRun("1", 8, person="ada"), QueuedRun("2", person="ada")]
    waiting += [QueuedRun(f"3{number}", person="bob") for number in range(3)]
    assert ids(waiting)[:4] == ["1", "30", "31", "32"]


def test_waiting_raises_a_run_until_it_goes_before_all() -> None:
    fresh = QueuedRun("9", rank=HIGH)
    assert ids([QueuedRun("1", rank=LOW, waited_s=STEP_S + 1), QueuedRun("2")])[0] == "1"
    assert ids([QueuedRun("1", rank=LOW, waited_s=STEP_S + 1), fresh])[0] == "9"
    assert ids([fresh, QueuedRun("1", rank=LOW, waited_s=STARVED_S)])[0] == "1"


def test_what_somebody_has_used_counts_half_after_a_day() -> None:
    assert decayed(100.0, HALF_LIFE_S) == 50.0
    assert decayed(100.0, -5.0) == 100.0, "a clock that was set back adds nothing"

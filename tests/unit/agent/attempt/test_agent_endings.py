"""How an attempt ended, as a message."""

from __future__ import annotations

import pytest

from stoker.agent.attempt.endings import Ending, by_itself, exit_code, raised, spell
from stoker.model.cause import Cause
from stoker.model.run.report import Outcome, RankEnd


def ending(end: RankEnd, tail: bytes = b"", *, out_of_memory: bool = False, ranks: int = 1) -> Ending:
    ends = {end.rank: end} | {rank: RankEnd(rank, 0) for rank in range(ranks) if rank != end.rank}
    return by_itself(ends, end.rank, tail, out_of_memory=out_of_memory)


def test_an_exit_code_is_reported() -> None:
    assert ending(RankEnd(0, 3)) == Ending(Outcome.FAILED, 3, "the script exited with code 3", cause=Cause.EXIT_CODE)


def test_the_rank_is_reported_where_there_are_several() -> None:
    assert ending(RankEnd(2, 3), ranks=4).message == "rank 2 exited with code 3"


def test_ranks_that_had_ended_before_are_named() -> None:
    """They may be what it waited for."""
    ends = {rank: RankEnd(rank, 0) for rank in (1, 3)} | {2: RankEnd(2, 3), 0: RankEnd(0, 0)}
    found = by_itself(ends, 2, b"", out_of_memory=False)
    assert found.message == "rank 2 exited with code 3, after ranks 1 and 3 had ended with exit code 0"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    x\nValueError: bad\n',
            "ValueError: bad",
        ),
        (
            "[rank2]: Traceback (most recent call last):\n[rank2]:   File x\n[rank2]: torch.Oops: no\n",
            "torch.Oops: no",
        ),
        ("Traceback (most recent call last):\n  x\nKeyError\n\nDuring handling:\n\nother\n", "KeyError"),
        (
            "Traceback (most recent call last):\n  x\nA: 1\n\nTraceback (most recent call last):\n  y\nB: 2\nlater\n",
            "B: 2",
        ),
        ("step 1\nbad: no traceback\n", ""),
        ("Traceback (most recent call last):\n  cut off", ""),
    ],
)
def test_the_exception_of_the_last_traceback_is_found(log: str, words: str) -> None:
    assert raised(log) == words


def test_a_long_exception_is_cut() -> None:
    log = f"Traceback (most recent call last):\nE: {'x' * 1000}\n"
    assert 100 < len(raised(log)) < 200


def test_a_signal_is_reported_as_a_shell_would_show_it() -> None:
    found = ending(RankEnd(0, None, 15))
    assert (found.exit_code, found.cause) == (143, Cause.SIGNAL) and "SIGTERM" in found.message


def test_a_kill_for_lack_of_memory_is_reported() -> None:
    found = ending(RankEnd(0, None, 9), out_of_memory=True)
    assert found.cause == Cause.OUT_OF_MEMORY
    assert ending(RankEnd(0, 137), out_of_memory=True).cause == Cause.OUT_OF_MEMORY
    assert ending(RankEnd(0, None, 11), out_of_memory=True).cause == Cause.SIGNAL


@pytest.mark.parametrize("tail", [b"EOFError: EOF when reading a line\n", b"x\nbdb.BdbQuit\n", b"-> f()\n(Pdb) \n"])
def test_a_script_that_reads_a_terminal_is_told_how_to_get_one_unless_it_has_one(tail: bytes) -> None:
    assert "stoker run --interactive" in ending(RankEnd(0, 1), tail).hint
    had = by_itself({0: RankEnd(0, 1)}, 0, tail, out_of_memory=False, terminal=True)
    assert had.hint == ""
    assert ending(RankEnd(0, 1), tail + b"ValueError: bad\n").hint == ""


def test_a_kill_for_lack_of_memory_comes_with_what_to_do() -> None:
    for found in (ending(RankEnd(0, None, 9), out_of_memory=True), ending(RankEnd(0, 1), out_of_memory=True)):
        assert "--set memory=" in found.hint
        assert "batch" in found.hint
    assert "out-of-memory killer" in ending(RankEnd(0, None, 9)).hint  # whose count may be in another container
    assert ending(RankEnd(0, 1)).hint == ""


@pytest.mark.parametrize(
    "said",
    [
        b"/bin/sh: 1: pythn: not found\n",
        b"/bin/sh: 1: exec: pythn: not found\n",
        b"epoch 1\n/bin/sh: line 1: pythn: command not found\n",
        b"zsh: command not found: other\nsh: pythn: not found\n",
    ],
)
def test_a_missing_command_is_named(said: bytes) -> None:
    assert ending(RankEnd(0, 127), said).cause == Cause.COMMAND_MISSING
    assert "`pythn`" in ending(RankEnd(0, 127), said).message


def test_a_script_that_exits_with_127_itself_is_taken_at_its_word() -> None:
    assert ending(RankEnd(0, 127), b"bye\n").cause == Cause.EXIT_CODE


def test_exit_codes_are_those_of_a_shell() -> None:
    assert [exit_code(end) for end in (RankEnd(0, 0), RankEnd(0, 3), RankEnd(0, None, 9))] == [0, 3, 137]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "1s"),
        (90, "1m30s"),
        (3600, "1h"),
        (5400, "1h30m"),
        (86400, "1d"),
        (0.5, "0.5s"),
        (60, "1m"),
        (90.5, "90.5s"),
    ],
)
def test_times_are_spelled_as_in_a_job_file(seconds: float, text: str) -> None:
    assert spell(seconds) == text

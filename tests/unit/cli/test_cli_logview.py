"""What happens to a script's output on the way to a reader."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.cli.view.logview import AsIs, ForTerminal, LastState, Prefixed, View, view_for

LONGEST = 12


def shown(view: View, *chunks: bytes) -> bytes:
    return b"".join([*(view.feed(chunk) for chunk in chunks), view.finish()])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def folded_by_the_book(data: bytes, longest: int) -> bytes:
    """The rule, without streaming: of each line the last text; a text too long to hold stays, on a line of its own."""
    out = b""
    *lines, rest = data.split(b"\n")
    for line, end in [*((line, b"\n") for line in lines), (rest, b"")]:
        kept, last = b"", b""
        for text in filter(None, line.split(b"\r")):
            kept += b"\n" if len(last) > longest else b""
            kept, last = (kept + text, text) if len(text) > longest else (kept, text)
        out += kept + (b"" if len(last) > longest else last) + end
    return out


# On a busy computer, drawing is slow and says nothing about the code.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
log_bytes = st.lists(
    st.sampled_from([b"\r", b"\n", b"\r\n", b"a", b"bc", b"defg", b"\x1b[31m", b"\xff", b"x" * 13, b"y" * 30])
).map(b"".join)
escapes = [b"\x1b", b"\x1b[", b"\x1b]0;", b"[", b"0", b";", b"1", b"m", b"K", b"A", b" ", b"9" * 45]
others = [b"\x07", b"\x9b", b"\xc2", b"\xff", b"\x7f", b"\n", b"\r", b"t", "é".encode(), "漢".encode()]
terminal_bytes = st.lists(st.sampled_from([*escapes, *others])).map(b"".join)
places = st.lists(st.integers(0, 10_000), max_size=12)


@settings(UNHURRIED)
@given(log_bytes, places)
def test_how_a_log_is_cut_does_not_show_in_last_states(data: bytes, where: list[int]) -> None:
    assert shown(LastState(LONGEST), *cut(data, where)) == folded_by_the_book(data, LONGEST)


@settings(UNHURRIED)
@given(terminal_bytes, places)
def test_how_a_log_is_cut_does_not_show_on_a_terminal(data: bytes, where: list[int]) -> None:
    assert shown(ForTerminal(), *cut(data, where)) == shown(ForTerminal(), data)


@settings(UNHURRIED)
@given(log_bytes, places)
def test_how_a_log_is_cut_does_not_show_behind_a_prefix(data: bytes, where: list[int]) -> None:
    assert shown(Prefixed(LastState(), b"[0] "), *cut(data, where)) == shown(Prefixed(LastState(), b"[0] "), data)


@settings(UNHURRIED)
@given(st.binary().filter(lambda data: b"\r" not in data), places)
def test_output_without_carriage_returns_is_identical(data: bytes, where: list[int]) -> None:
    assert shown(LastState(), *cut(data, where)) == data


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"\r 10%\r 50%\r100%\nnext\n", b"100%\nnext\n"),
        (b" 10%\r 50%\r100%\r\ndone\n", b"100%\ndone\n"),
        (b"windows\r\nlines\r\n", b"windows\nlines\n"),
        (b"bar\r   \rtext\n", b"text\n"),
        (b"50%\r", b"50%"),
        (b"50%\r60", b"60"),
        (b"a\r\r\r\nb\r\r\n", b"a\nb\n"),
        (b"\r\n\r\n", b"\n\n"),
        (b"", b""),
    ],
)
def test_a_line_shows_its_last_state(written: bytes, expected: bytes) -> None:
    assert shown(LastState(), written) == expected


def test_a_line_of_a_megabyte_is_folded_and_a_huge_one_passes_in_bounded_memory() -> None:
    mega = b"m" * 1_000_000
    assert shown(LastState(), mega + b"\r" + mega + b"!\n") == mega + b"!\n"
    view, passed = LastState(), 0
    for _ in range(200):
        passed += len(view.feed(mega))
        assert len(view.finish()) <= 5_000_000
    assert passed + len(view.finish()) == 200_000_000


def test_a_huge_line_of_progress_holds_only_its_last_state() -> None:
    view = LastState()
    for step in range(2000):
        assert view.feed(b"\r%06d" % step * 1000) == b""
    assert view.finish() == b"001999"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b"\x1b[31mred\x1b[0m\x1b[K\n", "\x1b[31mred\x1b[0m\x1b[K\n"),
        (b"\x1b[2J\x1b[1;1Hgone", "gone"),
        (b"\x1b]0;title\x07", "␛]0;title"),
        (b"back\b\b\rspace", "back\rspace"),
        (b"form\x0cfeed\x7f", "form␌feed␡"),
        (b"\xffbad \xc3\xa9", "\ufffdbad é"),
        ("\u009b2J".encode(), "\ufffd2J"),
        (b"tab\there", "tab\there"),
        (b"\x1b[31mleft red", "\x1b[31mleft red\x1b[0m"),
        (b"cut \x1b[3", "cut ␛[3"),
        ("gpj\u202eexe \u2066".encode(), "gpj\ufffdexe \ufffd"),
    ],
)
def test_a_terminal_gets_colours_but_nothing_that_acts(written: bytes, expected: str) -> None:
    assert shown(ForTerminal(), written).decode() == expected


@settings(UNHURRIED)
@given(terminal_bytes)
def test_nothing_that_acts_reaches_a_terminal(data: bytes) -> None:
    text = shown(ForTerminal(), data).decode()
    rest = re.sub(r"\x1b\[(?:[0-9;:]*m|[012]?K)", "", text)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", rest)


def test_each_line_gets_its_prefix() -> None:
    view = Prefixed(LastState(), b"[3] ")
    assert shown(view, b"one\ntw", b"o\n\nthree") == b"[3] one\n[3] two\n[3] \n[3] three"


@settings(UNHURRIED, max_examples=20)
@given(st.binary())
def test_raw_keeps_every_byte_for_a_file_or_a_pipe(data: bytes) -> None:
    assert shown(view_for(raw=True, terminal=False, live=True), data) == data
    assert isinstance(view_for(raw=True, terminal=False, live=False), AsIs)


def test_raw_on_a_terminal_keeps_every_state_of_a_bar_and_nothing_that_acts() -> None:
    assert shown(view_for(raw=True, terminal=True, live=False), b"1%\r2%\x1b]0;t\x07\n") == "1%\r2%␛]0;t\n".encode()


def test_a_live_terminal_draws_progress_bars_itself_unless_ranks_share_it() -> None:
    bar = b"\r1%\r2%\n"
    assert shown(view_for(raw=False, terminal=True, live=True), bar) == bar
    assert shown(view_for(raw=False, terminal=True, live=False), bar) == b"2%\n"
    assert shown(view_for(raw=False, terminal=True, live=True, prefix=b"[0] "), bar) == b"[0] 2%\n"

"""Where the output of a run goes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from stoker.cli.view.printer import JsonPrinter, LogSource, TextPrinter
from stoker.model.run.run import Run

FIRST, SECOND = LogSource(1, 0), LogSource(1, 1)


def test_a_single_rank_keeps_every_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = TextPrinter(live=True, exact=True)
    printer.text(FIRST, b"\xff\r1%\r2%")
    printer.finish(FIRST)
    assert capfdbinary.readouterr().out == b"\xff\r1%\r2%"


def test_ranks_share_the_page_by_whole_lines(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = TextPrinter(live=True, exact=True)
    printer.ranks = 11
    printer.text(FIRST, b"one ")
    printer.text(SECOND, b"two\nthree")
    printer.text(FIRST, b"line\n")
    printer.finish(SECOND)
    printer.finish(FIRST)
    assert capfdbinary.readouterr().out == b"[ 1] two\n[ 0] one line\n[ 1] three\n"


def test_a_line_too_long_to_hold_is_broken_rather_than_mixed(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = TextPrinter(live=True)
    printer.ranks = 2
    printer.text(FIRST, b"x" * 5_000_000)
    printer.text(SECOND, b"two\n")
    assert capfdbinary.readouterr().out.endswith(b"xxx\n[1] two\n")


def test_notes_stay_out_of_the_data(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = TextPrinter(live=True)
    printer.note("a note")
    assert capfdbinary.readouterr() == (b"", b"a note\n")


def test_json_lines_hold_text_whole_whatever_the_cut(
    capsys: pytest.CaptureFixture[str], make_run: Callable[..., Run]
) -> None:
    printer = JsonPrinter()
    printer.text(FIRST, "é".encode()[:1])
    printer.text(FIRST, "é".encode()[1:] + b"\xff\r1%")
    printer.text(FIRST, b"\xc3")
    printer.finish(FIRST)
    printer.note("only for people")
    printer.event("ended", make_run(), attempt=2)
    *logs, ended = map(json.loads, capsys.readouterr().out.splitlines())
    assert logs == [{"event": "log", "rank": 0, "attempt": 1, "text": text} for text in ("é\ufffd\r1%", "\ufffd")]
    assert (ended["event"], ended["attempt"], ended["run"]["name"]) == ("ended", 2, "ants-1")

"""Untrusted text cannot control the user's terminal, and one place ensures it."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.cli.view import terminal
from stoker.cli.view.terminal import STYLES, finished, harmless_json, one_line, paint, say, show, show_json, visible

COMMANDS = Path(terminal.__file__).parents[1]
ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]")
PIECES = [
    "\x1b",
    "[",
    "]",
    "0",
    ";",
    "m",
    "52;c;",
    "\x07",
    "\x1b\\",
    "\x9b",
    "\x9d",
    "\u202e",
    "\r",
    "\n",
    "a",
    "é",
    "\t",
]
hostile = st.lists(st.sampled_from(PIECES)).map("".join) | st.text()
slow_start = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow_start
@given(hostile)
def test_no_text_acts(text: str) -> None:
    told = visible(text)
    assert not ACTS.search(told)
    assert not re.search(r"[\ud800-\udfff]", told)
    assert visible(told) == told
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


@slow_start
@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs", "M"))))
def test_words_of_every_language_stay_as_they_are(text: str) -> None:
    assert visible(text) == text


@slow_start
@given(st.recursive(hostile, lambda inner: st.lists(inner) | st.dictionaries(hostile, inner)))
def test_json_means_the_same_and_does_not_act(value: object) -> None:
    told = harmless_json(json.dumps(value, ensure_ascii=False))
    assert not ACTS.search(told) and "\n" not in told
    assert json.loads(told) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;ZXZpbA==\x07copied", "copied"),
        ("\x1b]0;title\x1b\\kept", "kept"),
        ("\x1bP1$r\x1b\\kept", "kept"),
        ("\x1b]0;open\nline", "␛]0;open\nline"),
        ("\x1b\x1b[0m[31m", "␛[31m"),
        ("\x9b6n", ""),
        ("over\rwritten", "over␍written"),
        ("gpj\u202eexe", "gpj\ufffdexe"),
        ("bell\a\0", "bell␇␀"),
        ("\udc80", "\ufffd"),
    ],
)
def test_what_would_act_goes_or_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_own_colours_pass_and_the_same_bytes_of_somebody_else_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "colourful", lambda _: True)
    assert (
        finished(f"{paint('error:', 'error')} \x1b[31m\x1b[1mforged:\x1b[0m") == "\x1b[31m\x1b[1merror:\x1b[0m forged:"
    )
    for style in STYLES:
        assert re.fullmatch(r"(\x1b\[\d+m)+x\x1b\[0m", finished(paint("x", style)))


def test_every_way_to_the_streams_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;title\x07\x1b[2Jwords\u202e\x9b"
    say(evil)
    show(evil)
    show_json({evil: evil})
    told = capsys.readouterr()
    assert not ACTS.search(told.out + told.err)
    assert told.err == "words\ufffd\ufffd\n"
    assert json.loads(told.out.splitlines()[1]) == {evil: evil}


def test_a_status_line_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stderr", stream)
    terminal.redraw("\x1b[2J50 %\rforged", err=True)
    assert stream.buffer.getvalue() == "\r50 %␍forged\x1b[K".encode()


# What writes to a stream, and is called in `terminal.py` alone.
CLICK = {"echo", "secho", "echo_via_pager", "confirm", "prompt", "pause", "clear", "progressbar", "style"}
WRITERS = {*(f"click.{name}" for name in CLICK), "print", "pprint", "os.write", "os.writev"}
STREAM = re.compile(r"sys\.(__)?std(out|err)(__)?\.(buffer|write|writelines)")


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("**/*.py")), ids=lambda path: path.name)
def test_nothing_in_the_command_line_writes_to_a_stream_by_itself(path: Path) -> None:
    if path.name == "terminal.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}: use stoker.cli.view.terminal"
        if isinstance(node, ast.Attribute | ast.Name):
            assert ast.unparse(node) not in WRITERS, where
            assert not STREAM.match(ast.unparse(node)), where
        if isinstance(node, ast.ImportFrom) and node.module in ("click", "os", "sys"):
            assert not {alias.name for alias in node.names} & {*CLICK, "write", "stdout", "stderr"}, where
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name != "logview.py":
            assert "\x1b" not in node.value, where

"""The two streams of a command: data goes to stdout, everything else to stderr.

Nothing else in this package writes to them. Texts pass through `safetext`, because others wrote much of them; a
script's output passes through a view of `logview`.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from functools import cache
from typing import Any, TextIO

import click

from stoker.cli.view.safetext import harmless_json, visible
from stoker.client.settings import from_environment
from stoker.errors import BadInput

# Painted text is marked, and coloured when written. The mark cannot be guessed, so that escape sequences in texts of
# others can be distinguished from our own.
_MARK = f"\ufdd0{os.urandom(6).hex()}"
_END = "\ufdd1"
_MARKS = re.compile(f"{_MARK}([a-z]*){_END}")
_ERASE = "\x1b[K"  # from here to the end of the line

STYLES: dict[str, dict[str, Any]] = {
    "error": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "good": {"fg": "green"},
    "busy": {"fg": "cyan"},
    "faint": {"dim": True},
    "strong": {"bold": True},
}


def say(text: str = "") -> None:
    """A line of information."""
    click.echo(finished(text), err=True)


def show(text: str) -> None:
    """A line of data."""
    click.echo(finished(text))


def show_json(value: Any) -> None:
    """One object on one line. NaN and infinity become null."""
    import json  # needed only for JSON

    from stoker.model.wire import to_plain

    click.echo(harmless_json(json.dumps(_finite(to_plain(value)), ensure_ascii=False, allow_nan=False)))


def redraw(text: str, *, err: bool = False) -> None:
    """Overwrites the terminal's current line. Empty: clears it."""
    write(f"\r{finished(text)}{_ERASE}".encode(errors="replace"), err=err)


def write(data: bytes, *, err: bool = False) -> None:
    """Writes all bytes to stdout at once. For the output of a `logview` view: they are not filtered again."""
    stream = sys.stderr if err else sys.stdout
    if not stream:  # closed before we started
        return
    try:
        target = stream.fileno()
    except (OSError, ValueError, AttributeError):  # a replacement without a descriptor
        stream.buffer.write(data)
        stream.buffer.flush()
        return
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:  # another program that shares the terminal made it non-blocking
            time.sleep(0.01)


def paint(text: str, style: str) -> str:
    """The text in a style of `STYLES`, or in none, for stderr."""
    return _marked(text, style) if style and colourful(sys.stderr) else text


def paint_data(text: str, style: str) -> str:
    """The same, for stdout."""
    return _marked(text, style) if style and colourful(sys.stdout) else text


def finished(text: str) -> str:
    """The text as written: safe, with our own colours."""
    return _MARKS.sub(_colour, visible(text))


def colourful(stream: TextIO | None) -> bool:
    return is_terminal(stream) and _colours_wanted()


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return bool(stream and stream.isatty())
    except ValueError:  # closed meanwhile
        return False


def width() -> int:
    """Columns to draw in; very many if it is not a terminal, so that nothing is cut in a file or a pipe."""
    return max(40, shutil.get_terminal_size().columns) if is_terminal(sys.stdout) else 1000


def ask(question: str) -> bool:
    """Asks on a terminal. No answer means no."""
    try:
        return click.confirm(finished(question), default=False, err=True)
    except click.Abort:
        say()
        return False


def confirmed(question: str, *, yes: bool, as_json: bool = False) -> bool:
    """Whether the user agrees. Raises BadInput without a terminal: what cannot be undone requires consent."""
    if yes:
        return True
    if as_json or not interactive():
        what = question.rstrip("?")
        raise BadInput(
            f"this would {what}, and there is no terminal to ask for confirmation", hint="add `--yes` to confirm"
        )
    return ask(question)


def ask_number(question: str, most: int) -> int:
    """Asks for a number from 1; Enter chooses the first."""
    return int(click.prompt(finished(question), type=click.IntRange(1, most), default=1, err=True))


def ask_secret(what: str) -> str:
    """Asks without echo."""
    return str(click.prompt(finished(what), hide_input=True, err=True)).strip()


def interactive() -> bool:
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def can_erase() -> bool:
    """The terminal can overwrite a line."""
    return from_environment().variable("TERM") not in (None, "", "dumb")


def _marked(text: str, style: str) -> str:
    return f"{_MARK}{style}{_END}{text}{_MARK}{_END}"


def _colour(mark: re.Match[str]) -> str:
    return click.style("", **STYLES[mark[1]], reset=False) if mark[1] else "\x1b[0m"


@cache
def _colours_wanted() -> bool:
    settings = from_environment()
    return not settings.variable("NO_COLOR") and settings.variable("TERM") != "dumb"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0.0:  # infinite, or not a number
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value

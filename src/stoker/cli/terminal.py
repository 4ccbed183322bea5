"""The two streams of a command: data goes to stdout, everything said beside it to stderr."""

from __future__ import annotations

import os
import shutil
import sys
import time
from functools import cache
from typing import Any, TextIO

import click

from stoker.client.settings import from_environment

STYLES: dict[str, dict[str, Any]] = {
    "error": {"fg": "red", "bold": True},
    "warn": {"fg": "yellow"},
    "good": {"fg": "green"},
    "busy": {"fg": "cyan"},
    "faint": {"dim": True},
    "strong": {"bold": True},
}


def say(text: str = "") -> None:
    """A line beside the data."""
    click.echo(text, err=True)


def show(text: str) -> None:
    """A line of data."""
    click.echo(text)


def show_json(value: Any) -> None:
    """One object on one line. What is not a number in JSON is null."""
    import json  # only those who ask for JSON pay for it

    from stoker.model.wire import to_plain

    click.echo(json.dumps(_finite(to_plain(value)), ensure_ascii=False, allow_nan=False))


def write(data: bytes) -> None:
    """Bytes to stdout, all of them, at once."""
    if not sys.stdout:  # closed before we started
        return
    try:
        target = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):  # a stand-in without a descriptor
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(target, rest) :]
        except BlockingIOError:  # whoever shares the terminal has made it non-blocking
            time.sleep(0.01)


def paint(text: str, style: str) -> str:
    """The text in a style of `STYLES`, or in none, for stderr."""
    return click.style(text, **STYLES[style]) if style and colourful(sys.stderr) else text


def paint_data(text: str, style: str) -> str:
    """The same, for stdout."""
    return click.style(text, **STYLES[style]) if style and colourful(sys.stdout) else text


def colourful(stream: TextIO | None) -> bool:
    return is_terminal(stream) and _colours_wanted()


def is_terminal(stream: TextIO | None) -> bool:
    try:
        return bool(stream and stream.isatty())
    except ValueError:  # closed meanwhile
        return False


def width() -> int:
    """Columns to draw in; ample where nobody looks, so that nothing is cut from a file or a pipe."""
    return max(40, shutil.get_terminal_size().columns) if is_terminal(sys.stdout) else 1000


def ask(question: str) -> bool:
    """Asks on a terminal. No answer is no."""
    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort:
        say()
        return False


def interactive() -> bool:
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def can_erase() -> bool:
    """The terminal understands how a line is taken back."""
    return from_environment().variable("TERM") not in (None, "", "dumb")


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

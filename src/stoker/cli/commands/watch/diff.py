"""`stoker diff`: what differs between two runs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import click

from stoker.cli.command import Command, json_option, run_names
from stoker.cli.view import terminal, words
from stoker.cli.view.terminal import one_line, paint_data, say, show, show_json
from stoker.cli.view.words import Column, TableCell, table
from stoker.client.api.client import Client
from stoker.client.api.connection import Connection
from stoker.client.report.comparison import Change, Difference, MetricPair


@click.command(
    cls=Command,
    examples=[
        ("stoker diff ants-6 ants-7", "compare two runs and their results"),
        ("stoker diff ants-6 ants-7 --json", "the same, for a program"),
    ],
)
@click.argument("first", metavar="RUN", shell_complete=run_names)
@click.argument("second", metavar="RUN", shell_complete=run_names)
@json_option()
def command(first: str, second: str, as_json: bool) -> None:
    """Show what differs between two runs.

    Compares the code, the arguments, the other fields of the job, the packages, the nodes' systems, the data and the
    metrics, then prints the differences between text files.
    """
    client = Client.connect()
    difference = client.compare(first, second)
    if as_json:
        show_json({"difference": difference, "same": difference.same})
        return
    for line in lines(difference, terminal.width()):
        show(line)
    for patch in patches(difference.code, contents(client.connection)):
        for line in ("", *patch):
            show(paint_data(one_line(line.expandtabs(4)), style(line)))
    if difference.same:
        say("same code, job, packages and data")


def lines(found: Difference, width: int) -> list[str]:
    parts = (
        ("code", [_file(change) for change in found.code]),
        ("arguments", found.arguments),
        ("job", found.job),
        ("python", found.python),
        ("packages", found.packages),
        ("image", found.image),
        ("system", found.system),
        ("data", found.data),
    )
    sections = [_section(title, changes, found, width) for title, changes in parts if changes]
    if found.metrics:
        sections.append(_metrics(found.metrics, found, width))
    return [line for section in sections for line in (*section, "")][:-1]


def _section(title: str, changes: Sequence[Change], found: Difference, width: int) -> list[str]:
    columns = (Column(title.upper(), least=12), Column(found.first, least=12), Column(found.second, least=12))
    rows = [[TableCell(change.name), _value(change.first), _value(change.second)] for change in changes]
    return table(columns, rows, width, paint_data)


def _value(value: str | None) -> TableCell:
    return TableCell("-", "faint") if value is None else TableCell(value)


def _file(change: Change) -> Change:
    """Hashes are useful to people only to see that they differ."""
    first, second = change.first, change.second
    return Change(change.name, first and first[:8], second and second[:8])


def _metrics(metrics: Sequence[MetricPair], found: Difference, width: int) -> list[str]:
    columns = (
        Column("METRIC", least=12),
        Column(found.first, right=True),
        Column(found.second, right=True),
        Column("BEST OF " + found.first, right=True),
        Column("BEST OF " + found.second, right=True),
    )
    rows = [
        [TableCell(one.name), *map(_number, (one.first_last, one.second_last, one.first_best, one.second_best))]
        for one in metrics
    ]
    return table(columns, rows, width, paint_data)


def _number(value: float | None) -> TableCell:
    return TableCell("-", "faint") if value is None else TableCell(words.number(value))


# What changed inside the files of two runs: unified diffs of texts that are small enough to read.

MOST_FILES = 20
MOST_BYTES = 100_000
MOST_LINES = 200  # of one file's diff

Contents = Callable[[str], bytes | None]  # by sha256; None if the file is too large

_SHA256 = re.compile(r"[0-9a-f]{64}")


def contents(connection: Connection) -> Contents:
    def read(sha256: str) -> bytes | None:
        _, pieces = connection.stream(f"/v1/blobs/{sha256}")
        found = b""
        for piece in pieces:
            found += piece
            if len(found) > MOST_BYTES:
                return None
        return found

    return read


def patches(changes: Iterable[Change], read: Contents) -> Iterator[list[str]]:
    """For the first few text files: the lines of a unified diff, as `diff -u` would print them."""
    for change in list(changes)[:MOST_FILES]:
        first, second = _text(change.first, read), _text(change.second, read)
        if first is None or second is None:
            continue
        before = f"a/{change.name}" if change.first else "/dev/null"
        after = f"b/{change.name}" if change.second else "/dev/null"
        found = list(difflib.unified_diff(first, second, before, after, lineterm=""))
        left = len(found) - MOST_LINES
        yield [*found[:MOST_LINES], *([f"… {left:,} more lines"] if left > 0 else [])]


def style(line: str) -> str:
    """The style of a line of a diff."""
    if line.startswith(("---", "+++")):
        return "strong"
    return {"+": "good", "-": "error", "@": "busy"}.get(line[:1], "")


def _text(content: str | None, read: Contents) -> Sequence[str] | None:
    """Empty if there is no such file; None if it is not text, or too large."""
    if content is None:
        return []
    sha256 = _SHA256.match(content)
    data = read(sha256[0]) if sha256 else None
    if data is None or b"\0" in data:
        return None
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError:
        return None

"""What changed inside the files of two runs: unified differences of texts that are small enough to read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from stoker.client.comparison import Change
from stoker.client.connection import Connection

MOST_FILES = 20
MOST_BYTES = 100_000
MOST_LINES = 200  # of one file's difference

Contents = Callable[[str], bytes | None]  # by sha256; None where the file is too large

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
    """For the first few files that are text: the lines of a unified difference, as `diff -u` would print them."""
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
    """How a line of a difference is painted."""
    if line.startswith(("---", "+++")):
        return "strong"
    return {"+": "good", "-": "error", "@": "busy"}.get(line[:1], "")


def _text(content: str | None, read: Contents) -> Sequence[str] | None:
    """Empty where there is no such file; None where it is not text, or too much of it."""
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

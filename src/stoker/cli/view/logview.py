"""A script's output on its way to a reader: progress bars folded, control sequences removed, ranks labelled.

Each view takes bytes in chunks of any size and returns bytes; the chunking never shows in the output.
"""

from __future__ import annotations

import codecs
import re
from typing import Protocol

from stoker.cli.view.terminal import ACTING, picture

LONGEST = 4 << 20  # bytes held back because they may still be overwritten; longer lines pass unchanged


class View(Protocol):
    def feed(self, chunk: bytes) -> bytes: ...
    def finish(self) -> bytes:
        """What was held back. Called once, after the last chunk."""
        ...


class AsIs:
    """Every byte as the script wrote it."""

    def feed(self, chunk: bytes) -> bytes:
        return chunk

    def finish(self) -> bytes:
        return b""


class LastState:
    """Each line in its final state: the text after its last carriage return. CRLF ends a line as LF does."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._start_line()

    def feed(self, chunk: bytes) -> bytes:
        if len(chunk) > self._longest:  # so that no whole line within a chunk is too long to fold
            step = self._longest
            return b"".join(self.feed(chunk[at : at + step]) for at in range(0, len(chunk), step))
        first, last = chunk.find(b"\n"), chunk.rfind(b"\n")
        if first < 0:
            return self._more(chunk)
        lines = _folded(chunk[first + 1 : last + 1])
        return b"".join((self._more(chunk[:first]), self._newline(), lines, self._more(chunk[last + 1 :])))

    def finish(self) -> bytes:
        return bytes(self._text or self._before)

    def _start_line(self) -> None:
        self._text = bytearray()  # since the last carriage return
        self._before = b""  # the text if nothing follows that carriage return
        self._passing = False  # the text was too long to hold, and its beginning is written
        self._break_due = False  # such a text was overwritten: the next text gets its own line

    def _more(self, part: bytes) -> bytes:
        """Continues a line. Of many states in one part only the first, which may end a long text, and the last visible
        one can matter."""
        head, returned, rest = part.partition(b"\r")
        if not returned:
            return self._add(head)
        states, _, tail = rest.rpartition(b"\r")
        out = self._add(head)
        self._carriage_return()
        out += self._add(states.rstrip(b"\r").rpartition(b"\r")[2])
        self._carriage_return()
        return out + self._add(tail)

    def _add(self, text: bytes) -> bytes:
        if not text:
            return b""
        out = b"\n" if self._break_due else b""
        self._break_due = False
        if self._passing:
            return out + text
        self._text += text
        if len(self._text) > self._longest:
            out += self._text
            self._start_line()
            self._passing = True
        return out

    def _carriage_return(self) -> None:
        if self._passing:
            self._passing, self._break_due = False, True
        elif self._text:
            self._before = bytes(self._text)
            self._text.clear()

    def _newline(self) -> bytes:
        line = self.finish() + b"\n"
        self._start_line()
        return line


# Everything up to the last carriage return that text follows, and carriage returns right before the end of the line.
_OVERWRITTEN = re.compile(rb"^[^\n]*\r(?=[^\r\n])", re.MULTILINE)
_BEFORE_END = re.compile(rb"\r+\n")


def _folded(lines: bytes) -> bytes:
    if b"\r" not in lines:
        return lines
    lines = lines.replace(b"\r\n", b"\n")  # far faster than the patterns, and often sufficient
    return _BEFORE_END.sub(b"\n", _OVERWRITTEN.sub(b"", lines)) if b"\r" in lines else lines


_HARMLESS = bytes((*b"\t\n\r", *range(0x20, 0x7F)))
# It starts with one set of characters, which is fast to search for; the look-behind limits `[` to escape sequences.
_CONTROL = re.compile(rf"[{ACTING}](?:(?<=\x1b)\[[0-?]{{0,40}}[ -/]{{0,4}}[@-~])?")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,4})?\Z")
_SHOWN = re.compile(r"\x1b\[(?:[0-9;:]*m|[012]?K)")  # colours, and erasing within a line
_SILENT = "\0\a\b"  # dropped: older progress bars use many of them
_RESET = ("\x1b[m", "\x1b[0m")


class ForTerminal:
    """Text that cannot move the cursor, change the window title or type for the user. Colours stay."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # the beginning of an escape sequence
        self._colour = ""

    def feed(self, chunk: bytes) -> bytes:
        if not self._held and not self._decoder.getstate()[0] and not chunk.translate(None, _HARMLESS):
            return chunk
        return self._safe(self._decoder.decode(chunk)).encode()

    def finish(self) -> bytes:
        text = self._safe(self._decoder.decode(b"", final=True))
        text += _CONTROL.sub(self._replace, self._held)
        return (text + _RESET[1] if self._colour not in ("", *_RESET) else text).encode()

    def _safe(self, text: str) -> str:
        text = self._held + text
        unfinished = _UNFINISHED.search(text, max(0, len(text) - 48))
        self._held = unfinished[0] if unfinished else ""
        return _CONTROL.sub(self._replace, text[: len(text) - len(self._held)])

    def _replace(self, found: re.Match[str]) -> str:
        sequence = found[0]
        if _SHOWN.fullmatch(sequence):
            self._colour = sequence if sequence[-1] == "m" else self._colour
            return sequence
        if len(sequence) > 1 or sequence in _SILENT:
            return ""
        return picture(sequence)


class Prefixed:
    """Another view, with a prefix before each of its lines."""

    def __init__(self, inner: View, prefix: bytes) -> None:
        self._inner = inner
        self._prefix = prefix
        self._at_start = True

    def feed(self, chunk: bytes) -> bytes:
        return self._mark(self._inner.feed(chunk))

    def finish(self) -> bytes:
        return self._mark(self._inner.finish())

    def _mark(self, text: bytes) -> bytes:
        if not text:
            return b""
        start = self._prefix if self._at_start else b""
        self._at_start = text.endswith(b"\n")
        body = text[:-1] if self._at_start else text
        return b"".join((start, body.replace(b"\n", b"\n" + self._prefix), b"\n" if self._at_start else b""))


class Then:
    """One view after another."""

    def __init__(self, first: View, second: View) -> None:
        self._first = first
        self._second = second

    def feed(self, chunk: bytes) -> bytes:
        return self._second.feed(self._first.feed(chunk))

    def finish(self) -> bytes:
        return self._second.feed(self._first.finish()) + self._second.finish()


def view_for(*, raw: bool, terminal: bool, live: bool, prefix: bytes = b"") -> View:
    """The view for one rank. A live terminal draws progress bars itself, unless several ranks share it. Control
    sequences are removed on a terminal even if every byte was requested: those are for a file or a pipe."""
    if raw:
        return ForTerminal() if terminal else AsIs()
    folded: View = AsIs() if terminal and live and not prefix else LastState()
    safe = Then(folded, ForTerminal()) if terminal else folded
    return Prefixed(safe, prefix) if prefix else safe

"""What a cell prints: into the log as it comes, and into the notebook's copy as a person would see it in the end."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, TextIO

_MOST = 1 << 20  # characters of one stream of a cell that the copy keeps: the log has all of them
_CUT = "\n… left out here: the log of the run has all of it …\n"

Outputs = list[dict[str, Any]]


class Tee(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr`. What is asked of it beyond writing is the original's to answer."""

    def __init__(self, name: str, original: TextIO, outputs: Callable[[], Outputs], wrote: Callable[[], None]) -> None:
        self._name = name
        self._original = original
        self._outputs = outputs
        self._wrote = wrote

    def write(self, text: str) -> int:
        self._original.write(text)
        self._original.flush()
        add_text(self._outputs(), self._name, text)
        self._wrote()
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def fileno(self) -> int:
        return self._original.fileno()

    def isatty(self) -> bool:
        return self._original.isatty()

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        return self._original.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # likewise
        return self._original.errors


def add_text(outputs: Outputs, name: str, text: str) -> None:
    """To the last output where that is the same stream. A progress bar writes its line again: the last one counts."""
    last = outputs[-1] if outputs else None
    if last is None or last.get("output_type") != "stream" or last["name"] != name:
        last = {"output_type": "stream", "name": name, "text": ""}
        outputs.append(last)
    kept, _, line = last["text"].rpartition("\n") if "\n" in last["text"] else ("", "", last["text"])
    seen = _redrawn(line + text.replace("\r\n", "\n"))
    whole = f"{kept}\n{seen}" if kept or "\n" in last["text"] else seen
    if len(whole) > _MOST:
        head = whole.partition(_CUT)[0][: _MOST // 2]
        whole = head + _CUT + whole[-_MOST // 4 :]
    last["text"] = whole


def _redrawn(text: str) -> str:
    if "\r" not in text:
        return text
    lines = text.split("\n")
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines[:-1]]
    last = lines[-1]  # may be written over by what comes
    body, carriage = (last[:-1], "\r") if last.endswith("\r") else (last, "")
    return "\n".join([*shown, body.rpartition("\r")[2] + carriage])

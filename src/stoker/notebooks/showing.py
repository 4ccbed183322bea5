"""What a cell prints and shows: into the log as it comes, and into the notebook's copy as a person would see it."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

_FORMS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
}
takers: list[Callable[[bytes], None]] = []  # receivers of figures, as PNG
_MOST = 8 << 20  # bytes per format


def bundle(value: Any) -> dict[str, Any]:
    """By MIME type. A format that a value fails to produce is omitted: its text is always there."""
    found: dict[str, Any] = {}
    if isinstance(value, type):  # its methods need an instance
        return {"text/plain": repr(value)}
    with suppress(Exception):
        given = value._repr_mimebundle_()
        found |= given[0] if isinstance(given, tuple) else given or {}
    for method, kind in _FORMS.items():
        if kind in found or not hasattr(type(value), method):
            continue
        with suppress(Exception):
            form = getattr(value, method)()
            form = form[0] if isinstance(form, tuple) else form
            if form is not None and (not isinstance(form, str | bytes) or len(form) <= _MOST):
                found[kind] = base64.b64encode(form).decode() if isinstance(form, bytes) else form
    return {"text/plain": repr(value), **found}


def figure(png: bytes) -> dict[str, Any]:
    return {"image/png": base64.b64encode(png).decode(), "text/plain": "<Figure>"}


_MOST_PRINTED = 1 << 20  # characters per stream of a cell in the copy; the log has all of them
_CUT = "\n… omitted: the run's log has the full output …\n"

Outputs = list[dict[str, Any]]


class Tee(io.TextIOBase):
    """Replaces `sys.stdout` or `sys.stderr`. Anything beyond writing is passed to the original."""

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
    """Appends to the last output if that is the same stream. Of a progress bar only the last state is kept."""
    last = outputs[-1] if outputs else None
    if last is None or last.get("output_type") != "stream" or last["name"] != name:
        last = {"output_type": "stream", "name": name, "text": ""}
        outputs.append(last)
    kept, _, line = last["text"].rpartition("\n") if "\n" in last["text"] else ("", "", last["text"])
    seen = _redrawn(line + text.replace("\r\n", "\n"))
    whole = f"{kept}\n{seen}" if kept or "\n" in last["text"] else seen
    if len(whole) > _MOST_PRINTED:
        head = whole.partition(_CUT)[0][: _MOST_PRINTED // 2]
        whole = head + _CUT + whole[-_MOST_PRINTED // 4 :]
    last["text"] = whole


def _redrawn(text: str) -> str:
    if "\r" not in text:
        return text
    lines = text.split("\n")
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines[:-1]]
    last = lines[-1]  # may be overwritten later
    body, carriage = (last[:-1], "\r") if last.endswith("\r") else (last, "")
    return "\n".join([*shown, body.rpartition("\r")[2] + carriage])

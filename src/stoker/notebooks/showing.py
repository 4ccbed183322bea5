"""What a value looks like in a notebook: as text for the log, and as the richer forms that it offers."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_FORMS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
}
takers: list[Callable[[bytes], None]] = []  # of figures that are shown, as PNG
_MOST = 8 << 20  # of one form


def bundle(value: Any) -> dict[str, Any]:
    """By kind of content. A form that a value fails to give is left out: its text is always there."""
    found: dict[str, Any] = {}
    if isinstance(value, type):  # its methods are not about itself
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

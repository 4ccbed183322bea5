"""A notebook's file: its cells as written, and the copy with outputs."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.notebooks.magics import as_python_roughly

_SKIPPED = "skip-execution"  # the tags of Jupyter's own tools
_MAY_RAISE = "raises-exception"


class NotebookUnreadable(Exception):
    """The file is not a notebook that can run; the message says why."""


@dataclass
class NotebookCell:
    """One cell of code. `number` counts the code cells from 1, as Jupyter shows them when all are run."""

    number: int
    source: str
    plain: dict[str, Any] = field(repr=False)

    @property
    def may_raise(self) -> bool:
        return _MAY_RAISE in _tags(self.plain)


class Document:
    def __init__(self, data: bytes, name: str) -> None:
        try:
            self._plain: dict[str, Any] = json.loads(data)
            cells = self._plain["cells"]
            code = [one for one in cells if one.get("cell_type") == "code" and _SKIPPED not in _tags(one)]
            self.cells = [NotebookCell(number, _text(one["source"]), one) for number, one in enumerate(code, start=1)]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            older = isinstance(getattr(self, "_plain", None), dict) and "worksheets" in self._plain
            what = "has an old format: open and save it in Jupyter" if older else "is not a notebook in JSON"
            raise NotebookUnreadable(f"{name} {what}") from None
        language = _language(self._plain)
        if language.lower() != "python":
            raise NotebookUnreadable(f"{name} is a {language} notebook: only Python is supported")
        self.hidden: list[str] = []  # secrets to mask in the copy, as in the log
        for cell in self.cells:
            cell.plain |= {"outputs": [], "execution_count": None}

    def write(self, path: Path) -> None:
        """Writes the whole file, or keeps the previous one if that fails."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        text = json.dumps(self._plain, indent=1, ensure_ascii=False)
        for value in self.hidden:
            text = text.replace(json.dumps(value, ensure_ascii=False)[1:-1], "*" * len(value))
        part.write_text(f"{text}\n", encoding="utf-8", errors="replace")
        os.replace(part, path)  # noqa: PTH105  # as the rest of a path that may be any object


def code_of(data: bytes) -> str:
    """All cells as one Python program, for static analysis; empty if it is not a notebook."""
    try:
        cells = Document(data, "").cells
    except NotebookUnreadable:
        return ""
    return "\n".join(as_python_roughly(cell.source) for cell in cells)


def _language(plain: dict[str, Any]) -> str:
    metadata = plain.get("metadata")
    kernel = metadata.get("kernelspec") if isinstance(metadata, dict) else None
    return str(kernel.get("language") or "python") if isinstance(kernel, dict) else "python"


def _tags(cell: dict[str, Any]) -> list[str]:
    tags = (cell.get("metadata") or {}).get("tags") or []
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def _text(source: Any) -> str:
    return "".join(source) if isinstance(source, list) else str(source)

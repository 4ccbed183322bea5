"""Patterns that name objects in a store: `coco2017/**`, `logs/2024-*/*.csv`."""

from __future__ import annotations

import re

from stoker.errors import BadInput
from stoker.model import layout

_SPECIAL = re.compile(r"[*?\[]")


class Pattern:
    """`**` stands for any number of folders, `*` and `?` for characters within a name, `[abc]` for one of them. The
    part before the first of these is the folder that paths in the dataset start from."""

    def __init__(self, text: str) -> None:
        """Raises BadInput where it could match nothing."""
        names = text.split("/")
        if not text or text.startswith("/") or any(name in ("", ".", "..") for name in names):
            raise BadInput(
                f"`{text}` is not a pattern of keys in a store",
                hint="write it without a leading `/`, `.` or `..`, such as `coco2017/**`",
            )
        if not _SPECIAL.search(text):  # a folder by its name alone, or one object
            self.folder, self.plain = text, True
            self._matches = re.compile(re.escape(text) + "(/.+)?", re.DOTALL)
            return
        fixed = next(at for at, name in enumerate(names) if _SPECIAL.search(name))
        self.folder, self.plain = "/".join(names[:fixed]), False
        self._matches = re.compile(_translated(names), re.DOTALL)

    def path(self, key: str) -> str | None:
        """The path of this object in the dataset; None where it is not meant, or is Stoker's own."""
        if key.endswith("/") or not self._matches.fullmatch(key) or layout.is_ours(key):
            return None
        if key == self.folder:
            return key.rpartition("/")[2]
        return key.removeprefix(f"{self.folder}/") if self.folder else key


def _translated(names: list[str]) -> str:
    parts: list[str] = []
    for at, name in enumerate(names):
        last = at == len(names) - 1
        if name == "**":
            parts.append(".+" if last else "(?:[^/]+/)*")
        else:
            parts.append(_name(name) + ("" if last else "/"))
    return "".join(parts)


def _name(name: str) -> str:
    """One name with its wildcards. A bracket that is never closed stands for itself, as in a shell."""
    found: list[str] = []
    at = 0
    while at < len(name):
        one, at = name[at], at + 1
        end = name.find("]", at + 1) if one == "[" else -1
        if end > 0:
            body = name[at:end].replace("\\", "\\\\").replace("[", "\\[")
            found.append(f"(?!/)[{'^' + body[1:] if body[0] in '!^' else body}]")
            at = end + 1
        else:
            found.append({"*": "[^/]*", "?": "[^/]"}.get(one, re.escape(one)))
    return "".join(found)

"""Files that say which of the others is meant: `latest`, a link, a tracker. Without them no checkpoint may be found."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stoker.agent.contents import open_still
from stoker.agent.naming import folders_of, kind_of, numbers_in
from stoker.agent.watching import Found
from stoker.model.snapshot import EntryKind

MOST_BYTES = 4096
_LETTER = re.compile(r"[A-Za-z]")
_WORDS = re.compile(r"[^\s\"'`,:;=/\\{}\[\]]+")


def speaks_of(one: Found, paths: Iterable[str]) -> bool:
    """Whether it names a file or folder like one of these, of whatever number, or is nothing but a number."""
    words = _WORDS.findall(_text(one))
    if not words:  # as most files have none: there may be thousands, and thousands of paths
        return False
    names = {path.rpartition("/")[2] for file in paths for path in (file, *folders_of(file)[:-1])}
    if len(words) == 1 and words[0].isdecimal():
        return any(numbers_in(name) for name in names)
    kinds = {kind_of(name) for name in names}
    return any(kind_of(word) in kinds for word in words if _LETTER.search(word))


def _text(one: Found) -> str:
    if one.entry.kind is EntryKind.LINK:
        return one.entry.target
    if not one.is_file or one.entry.size_bytes > MOST_BYTES:
        return ""
    try:
        with open_still(one.place) as file:  # it may be a pipe by now
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""

"""The last checkpoint of a run beside that of another: what in them is comparable, and what differs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from stoker.client.certify.files import FileChange, FileFault
from stoker.model.job.checkpointpaths import BESIDE
from stoker.model.snapshot import Entry, EntryKind

_OURS = re.compile(r"(^|/)step-\d{9}(/|$)")  # `stoker.checkpoint` saves by the clock, and verifies itself
_SUFFIXES = (".pt", ".pth", ".tar", ".ckpt", ".bin", ".npz", ".npy", ".safetensors", ".json", ".csv")


def comparable(entries: Iterable[Entry], outputs: str) -> dict[str, str]:
    """Path to sha256, of files that the script wrote and that are not compared as outputs anyway."""
    return {
        one.path: one.sha256
        for one in entries
        if one.kind is EntryKind.FILE
        and one.sha256
        and not one.path.endswith(BESIDE)
        and not one.path.startswith(f"{outputs}/")
        and not _OURS.search(one.path)
    }


def changed(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Those that both have, and whose numbers can be read. Which files are left, and what is around the numbers, may
    depend on when the script was interrupted."""
    same = sorted(path for path in ours.keys() & theirs.keys() if ours[path] != theirs[path])
    return [path for path in same if path.endswith(_SUFFIXES)]


def telling(change: FileChange) -> bool:
    return change.fault is FileFault.NUMBERS

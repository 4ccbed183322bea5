"""The file beside a saved file that says what the script's process was like at the save. Nothing in it is executed.

A save is announced before it begins and confirmed after it, with a fingerprint of what was written; the save before is
kept as well. So at whatever moment a machine goes, what lies in the folder finds its own record, or none.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from stoker.checkpoint.surroundings import rank

Record = dict[str, Any]

SUFFIX = ".stoker-exact"
_FORM = 1
_WHOLE_BYTES = 1 << 20  # up to here every byte counts for the fingerprint
_PIECE_BYTES = 1 << 14
_PIECES = 64
_EARLIER_NS = 1_000_000_000  # a script that takes the file that was written last is to find its own
_END_BYTES = 1 << 16  # archives of PyTorch, Keras and NumPy have the checksums of all their parts here


def beside(path: str) -> Path:
    """Hidden, so that the script does not find it where it looks for its own files."""
    place = Path(path).absolute()
    return place.with_name(f".{place.name}{SUFFIX}")


def announce(path: str, record: Record) -> None:
    """Before the save: whatever is at `path` from now on and is not known is this."""
    place = beside(path)
    if place.parent.is_dir():  # else the save makes it
        _sweep(place.parent)
        _write(place, [{**record, "print": ""}, *_confirmed(place)])


def confirm(path: str, record: Record) -> None:
    """After the save. Not for a file that is still being written to: it stays announced."""
    _write(beside(path), [{**record, "print": fingerprint(path)}, *_confirmed(beside(path))])


def find(path: str) -> Record | None:
    """What belongs to the file as it is now."""
    records = _read(beside(path))
    if not records:
        return None
    seen = fingerprint(path)
    known = next((one for one in records if one["print"] == seen), None)
    return known or next((one for one in records if not one["print"]), None)


def follow(source: str, target: str, *, copied: bool = False) -> None:
    """Moves or copies the sidecar along, just before the script does that with its file."""
    records = _read(beside(source))
    if not records:
        return
    newest = {**records[0], "print": records[0]["print"] or fingerprint(source)}
    # Until it has happened, the target is what it was, and needs its own record.
    _write(beside(target), [newest, *([] if copied else _confirmed(beside(target)))])


def forget(path: str) -> None:
    beside(path).unlink(missing_ok=True)


def fingerprint(path: str) -> str:
    """Covers every byte of a small file; of a large one, its end and pieces throughout."""
    size = Path(path).stat().st_size
    found = hashlib.sha256(str(size).encode())
    with Path(path).open("rb") as file:
        if size <= _WHOLE_BYTES:
            found.update(file.read())
            return found.hexdigest()
        for number in range(_PIECES):
            file.seek(number * (size - _PIECE_BYTES) // _PIECES)
            found.update(file.read(_PIECE_BYTES))
        file.seek(size - _END_BYTES)
        found.update(file.read())
    return found.hexdigest()


def _read(place: Path) -> list[Record]:
    try:
        held = read_text(place.read_bytes())
    except (OSError, ValueError):
        return []
    usable = isinstance(held, dict) and held.get("form") == _FORM and isinstance(held.get("saves"), list)
    return [one for one in held["saves"] if isinstance(one, dict) and "print" in one] if usable else []


def _confirmed(place: Path) -> list[Record]:
    """The last save that is known to be complete."""
    return [one for one in _read(place) if one["print"]][:1]


def _write(place: Path, records: list[Record]) -> None:
    _put(place, as_text({"form": _FORM, "saves": records}).encode())


def as_text(value: Record) -> str:
    return json.dumps(value, default=_packed)


def read_text(text: bytes | str) -> Record:
    found: Record = json.loads(text, object_hook=_unpacked)
    return found


def _put(place: Path, data: bytes) -> None:
    part = place.with_name(f"{place.name}{rank()}.part")  # several ranks may save to one path
    part.write_bytes(data)
    earlier_ns = time.time_ns() - _EARLIER_NS
    os.utime(part, ns=(earlier_ns, earlier_ns))
    part.replace(place)


def _sweep(folder: Path) -> None:
    """Removes sidecars whose files the script has removed."""
    for entry in os.scandir(folder):
        if entry.name.startswith(".") and entry.name.endswith(SUFFIX):
            name = entry.name[1 : -len(SUFFIX)]
            if not Path(folder, name).exists():
                Path(entry.path).unlink(missing_ok=True)


def _packed(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    raise TypeError(f"`{type(value).__name__}` has no place in a record")


def _unpacked(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["bytes"]) if value.keys() == {"bytes"} else value

"""What a checkpoint says of itself: the step, and every file with its size and hash. Written last, read first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from stoker.errors import Unreadable

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class CheckpointManifest:
    """`tensors` says in which file each tensor is; file names may lead into a rank's folder, never out of this one."""

    step: int
    epoch: int
    saved_at: float
    files: Mapping[str, FileEntry]
    tensors: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    ranks: int = 1

    def dump(self) -> bytes:
        document = {"format": FORMAT, **asdict(self)}
        return (json.dumps({**document, "own_sha256": _digest(document)}, indent=1) + "\n").encode()


def load(data: bytes) -> CheckpointManifest:
    """An `Unreadable` says what is wrong with it."""
    try:
        found: dict[str, Any] = json.loads(data)
        if found["format"] != FORMAT:
            raise Unreadable(f"its format is {found['format']!r}; this Stoker reads {FORMAT}")
        if found.pop("own_sha256") != _digest(found):
            raise ValueError("its hash does not match")
        manifest = CheckpointManifest(
            step=_whole(found["step"]),
            epoch=_whole(found["epoch"]),
            saved_at=float(found["saved_at"]),
            files={
                _inside(name): FileEntry(_whole(e["size_bytes"]), str(e["sha256"]))
                for name, e in found["files"].items()
            },
            tensors={str(name): str(file) for name, file in found["tensors"].items()},
            metrics={str(name): float(value) for name, value in found["metrics"].items()},
            ranks=_whole(found["ranks"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unreadable(f"its manifest is damaged: {type(error).__name__} {error}") from None
    if lost := set(manifest.tensors.values()) - manifest.files.keys():
        raise Unreadable(f"its manifest names the file `{sorted(lost)[0]}` without its hash")
    return manifest


def _digest(document: Mapping[str, Any]) -> str:
    return sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


def _inside(name: str) -> str:
    if not name or name.startswith("/") or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a file of this folder")
    return name

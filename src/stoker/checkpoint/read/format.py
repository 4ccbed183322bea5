"""What a checkpoint says of itself, every file with its size and hash, and which leaves share a file."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any

from stoker.checkpoint.state.structure import SIZES, Leaf
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


LARGE_BYTES = 4 << 20  # a leaf from here on has a file of its own
BUNDLE_BYTES = 8 << 20  # small ones share: every file costs a flush to the disk
_LONGEST_NAME = 150


def pack(leaves: Mapping[str, Leaf]) -> dict[str, list[str]]:
    """File name to the names of the leaves in it, in their order."""
    files: dict[str, list[str]] = {}
    for part, names in _by_part(leaves).items():
        for number, bundle in enumerate(_bundles([name for name in names if not _large(leaves[name])], leaves)):
            files[f"{_file_name(part)}-{number:03d}.safetensors"] = bundle
        for name in names:
            if _large(leaves[name]):
                files[f"{_file_name(name)}.safetensors"] = [name]
    return files


def _large(leaf: Leaf) -> bool:
    return leaf.size_bytes >= LARGE_BYTES


def _by_part(leaves: Mapping[str, Leaf]) -> dict[str, list[str]]:
    parts: dict[str, list[str]] = {}
    for name in leaves:
        parts.setdefault(name.partition("/")[0], []).append(name)
    return parts


def _bundles(names: list[str], leaves: Mapping[str, Leaf]) -> Iterator[list[str]]:
    bundle: list[str] = []
    size_bytes = 0
    for name in names:
        bundle.append(name)
        size_bytes += leaves[name].size_bytes
        if size_bytes >= BUNDLE_BYTES:
            yield bundle
            bundle, size_bytes = [], 0
    if bundle:
        yield bundle


def _file_name(name: str) -> str:
    plain = re.sub(r"[^\w.-]", "_", name.replace("/", "."), flags=re.ASCII).lstrip(".")[:_LONGEST_NAME] or "_"
    return plain if plain == name.replace("/", ".") and "." not in name.partition("/")[0] else _told_apart(plain, name)


def _told_apart(plain: str, name: str) -> str:
    """Names that were changed to be file names get a digest of what they were, so that no two become one."""
    return f"{plain}-{sha256(name.encode()).hexdigest()[:8]}"


# The safetensors format: eight bytes of length, a JSON header, then the numbers. Nothing in it can be executed.

_ALIGNED = 64  # where the numbers begin: matrix routines may add up in another order where memory is not aligned
_MOST_HEADER_BYTES = 100_000_000  # as the format's own library has it


def header(leaves: Mapping[str, Leaf]) -> bytes:
    """What precedes the numbers of these leaves, which follow one another in this order without gaps."""
    entries: dict[str, Any] = {}
    at = 0
    for name, leaf in leaves.items():
        end = at + leaf.size_bytes
        entries[name] = {"dtype": leaf.dtype, "shape": list(leaf.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return struct.pack("<Q", len(text)) + text


def places(data: memoryview) -> dict[str, tuple[Leaf, memoryview]]:
    """Every tensor of a file with its bytes, without a copy. A header that lies about its file is an `Unreadable`."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > min(_MOST_HEADER_BYTES, len(data) - 8):
            raise ValueError(f"a header of {length} bytes in a file of {len(data)}")
        entries = json.loads(bytes(data[8 : 8 + length]))
        body = data[8 + length :]
        return {name: _place(entry, body) for name, entry in entries.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise Unreadable(f"not a safetensors file: {error}") from None


def _place(entry: Mapping[str, Any], body: memoryview) -> tuple[Leaf, memoryview]:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    if entry["dtype"] not in SIZES or not all(type(extent) is int and extent >= 0 for extent in shape):
        raise ValueError(f"{entry['dtype']} {list(shape)}")
    leaf = Leaf(entry["dtype"], shape, "torch")
    if not 0 <= begin <= end <= len(body) or end - begin != leaf.size_bytes:
        raise ValueError(f"{leaf} at {begin} to {end} of {len(body)} bytes")
    return leaf, body[begin:end]

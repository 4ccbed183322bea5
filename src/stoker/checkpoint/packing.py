"""Which leaves share a file. Pure, and the same for the same leaves, so that an unchanged part is an identical file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256

from stoker.checkpoint.leaves import Leaf

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

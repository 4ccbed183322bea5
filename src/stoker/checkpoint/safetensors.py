"""The safetensors format: eight bytes of length, a JSON header, then the numbers. Nothing in it can be executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from stoker.checkpoint.leaves import SIZES, Leaf
from stoker.errors import Unreadable

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

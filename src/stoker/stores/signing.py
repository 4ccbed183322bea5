"""For everybody to read, and for nobody else to change: HMAC-SHA256 under a key that server and node share.

Standard library only: agents carry this file.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from stoker.errors import Corrupt

KEY_BYTES = 32
_SIGNED = b"stoker-signed-1 "


def new_key() -> str:
    return os.urandom(KEY_BYTES).hex()


def derived_key(key: str, about: str) -> str:
    """A key of its own for each thing, so that one that gets known opens nothing else."""
    return _mac(bytes.fromhex(key), b"derive", about.encode()).hex()


def part(key: str, use: bytes) -> bytes:
    """Signing and sealing never share a key."""
    return _mac(bytes.fromhex(key), use)


def signed(key: str, data: bytes, about: str) -> bytes:
    """A line with a tag, then the data as it is. `about` says what this is, such as its place: what was moved elsewhere
    is not signed there."""
    return _SIGNED + _signature(key, data, about) + b"\n" + data


def opened(key: str, data: bytes, about: str) -> bytes:
    """What was signed. Raises Corrupt where it was signed with another key or about something else, or is damaged."""
    tag, _, rest = data.removeprefix(_SIGNED).partition(b"\n")
    if not data.startswith(_SIGNED) or not hmac.compare_digest(tag, _signature(key, rest, about)):
        raise Corrupt(f"`{about}` has no valid signature of this server: it was written or changed by something else")
    return rest


def unverified(data: bytes) -> bytes:
    """What may have been signed, for whoever has no key and does nothing on its word."""
    return data.partition(b"\n")[2] if data.startswith(_SIGNED) else data


def _signature(key: str, data: bytes, about: str) -> bytes:
    said = about.encode()
    return _mac(part(key, b"sign"), len(said).to_bytes(8, "big"), said, data).hex().encode()


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()

"""A small secret in a place that others can read: only whoever has the key can open it, and a change is noticed.

Encrypt-then-authenticate from what the standard library has: a keystream of HMAC-SHA256 over a nonce and a counter, and
a tag over everything. Agents carry this file.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from stoker.errors import Corrupt

KEY_BYTES = 32
_MARK = b"stoker-sealed-1\n"  # the form; another one gets another mark
_SIGNED = b"stoker-signed-1 "
_NONCE_BYTES = 16
_TAG_BYTES = 32


def new_key() -> str:
    return os.urandom(KEY_BYTES).hex()


def derived_key(key: str, about: str) -> str:
    """A key of its own for each thing, so that one that gets known opens nothing else."""
    return _mac(bytes.fromhex(key), b"derive", about.encode()).hex()


def seal(key: str, text: str, about: str) -> bytes:
    """`about` says what this is, such as its place: sealed text that was moved elsewhere does not open there."""
    plain, nonce = text.encode(), os.urandom(_NONCE_BYTES)
    hidden = _mixed(_part(key, b"hide"), nonce, plain)
    return _MARK + nonce + hidden + _tag(key, nonce, hidden, about)


def unseal(key: str, data: bytes, about: str) -> str:
    """Raises Corrupt where it was sealed with another key or about something else, or is damaged."""
    body = data.removeprefix(_MARK)
    nonce, hidden, tag = body[:_NONCE_BYTES], body[_NONCE_BYTES:-_TAG_BYTES], body[-_TAG_BYTES:]
    if body is data or not hmac.compare_digest(tag, _tag(key, nonce, hidden, about)):
        raise Corrupt(f"what is sealed as `{about}` does not open: it is damaged, or meant for somebody else")
    return _mixed(_part(key, b"hide"), nonce, hidden).decode()


def signed(key: str, data: bytes, about: str) -> bytes:
    """For everybody to read, and for nobody else to change: a line with a tag, then the data as it is."""
    return _SIGNED + _signature(key, data, about) + b"\n" + data


def opened(key: str, data: bytes, about: str) -> bytes:
    """What was signed. Raises Corrupt as `unseal` does."""
    tag, _, rest = data.removeprefix(_SIGNED).partition(b"\n")
    if not data.startswith(_SIGNED) or not hmac.compare_digest(tag, _signature(key, rest, about)):
        raise Corrupt(f"`{about}` is not signed by this server: somebody else wrote or changed it")
    return rest


def unverified(data: bytes) -> bytes:
    """What may have been signed, for whoever has no key and does nothing on its word."""
    return data.partition(b"\n")[2] if data.startswith(_SIGNED) else data


def _signature(key: str, data: bytes, about: str) -> bytes:
    said = about.encode()
    return _mac(_part(key, b"sign"), len(said).to_bytes(8, "big"), said, data).hex().encode()


def _mixed(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """Hides what is plain, and shows what was hidden."""
    blocks = range(-(-len(data) // _TAG_BYTES))
    stream = b"".join(_mac(key, nonce, block.to_bytes(8, "big")) for block in blocks)[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def _tag(key: str, nonce: bytes, hidden: bytes, about: str) -> bytes:
    said = about.encode()
    return _mac(_part(key, b"tag"), len(said).to_bytes(8, "big"), said, nonce, hidden)


def _part(key: str, use: bytes) -> bytes:
    """Hiding and tagging never share a key."""
    return _mac(bytes.fromhex(key), use)


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()

"""Seals a small secret for one node: AES-256-GCM of `cryptography`. Only a server does this; nodes have `unsealing`."""

from __future__ import annotations

import os

from stoker.stores.unsealing import MARK, NONCE_BYTES, associated, sealing_key


def seal(key: str, text: str, about: str) -> bytes:
    """`about` says what this is, such as its place: sealed text that was moved elsewhere does not open there. A random
    nonce of 96 bits is safe for 2^32 messages with one key; a node gets a few a day."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # here, because few servers have a far store

    nonce = os.urandom(NONCE_BYTES)
    return MARK + nonce + AESGCM(sealing_key(key)).encrypt(nonce, text.encode(), associated(about))

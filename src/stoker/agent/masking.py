"""Secrets in what a script prints become stars of the same length, so that every offset stays what it was."""

from __future__ import annotations

import json
from collections.abc import Iterable

SHORTEST = 8  # shorter values would star out ordinary text


class Masking:
    """Stateless: the caller keeps the offset it has shipped up to and the number of bytes that are still covered."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values: set[str] = set()
        for secret in secrets:
            plain = secret.strip()  # a trailing newline of a secret read from a file is no part of it
            values |= {plain, json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]}
        encoded = (value.encode(errors="surrogateescape") for value in values if len(value) >= SHORTEST)
        self._secrets = sorted(encoded)

    @property
    def needed(self) -> bool:
        return bool(self._secrets)

    def mask(self, data: bytes, covered: int = 0, *, final: bool = False) -> tuple[bytes, int]:
        """The bytes of `data` that may be shown now, masked, and how many of those after them belong to a secret.

        The first `covered` bytes are known to be part of one that began earlier. An end that may be the beginning of a
        secret is held back until more is known: the rest is to be given again, with what follows. `final` says that
        nothing follows.
        """
        if not self._secrets:
            return data, 0
        spans = [(0, covered), *self._found(data)]
        shown = len(data) if final else len(data) - self._held(data)
        masked = bytearray(data[:shown])
        for start, end in spans:
            masked[start:end] = b"*" * max(min(end, shown) - start, 0)
        return bytes(masked), max(max(end for _, end in spans) - shown, 0)

    def whole(self, data: bytes) -> bytes:
        return self.mask(data, final=True)[0]

    def text(self, text: str) -> str:
        """The text as it can be stored: masked, and without the halves of characters that file names may hold."""
        if not self._secrets and text.isascii():
            return text
        return self.whole(text.encode(errors="surrogateescape")).decode(errors="replace")

    def _found(self, data: bytes) -> list[tuple[int, int]]:
        """Every occurrence, also those that overlap: a secret stays one when another begins in its middle."""
        spans = []
        for secret in self._secrets:
            start = data.find(secret)
            while start >= 0:
                spans.append((start, start + len(secret)))
                start = data.find(secret, start + 1)
        return spans

    def _held(self, data: bytes) -> int:
        """The length of the longest end of `data` with which a secret may begin."""
        longest = 0
        for secret in self._secrets:
            for length in range(min(len(secret) - 1, len(data)), longest, -1):
                if data.endswith(secret[:length]):
                    longest = length
                    break
        return longest

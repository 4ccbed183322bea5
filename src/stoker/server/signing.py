"""Records in a store carry a signature of this server: whoever else may write there can add none, and change none."""

from __future__ import annotations

import threading

from stoker.errors import HomeUnusable
from stoker.server.keychain import Keychain
from stoker.stores import sealed

NAME = "key of records"  # in the keychain


class Signing:
    """Called from several threads. A signature is for one place: a record that was copied elsewhere has none there."""

    def __init__(self, keychain: Keychain) -> None:
        self._keychain = keychain
        self._key = ""
        self._lock = threading.Lock()

    def sign(self, store: str, key: str, data: bytes) -> bytes:
        return sealed.signed(self._known(), data, f"{store} {key}")

    def opened(self, store: str, key: str, data: bytes) -> bytes:
        """Raises Corrupt where this server has not written it there. Raises HomeUnusable where that cannot be told."""
        if not self._key and self._keychain.get(NAME) is None:
            raise HomeUnusable(
                f"the key that records were signed with is not in {self._keychain.place}",
                hint="unlock the keyring or restore the file, then try again; nothing was changed. Move the database "
                "away to begin with an empty one",
            )
        return sealed.opened(self._known(), data, f"{store} {key}")

    def _known(self) -> str:
        with self._lock:
            if not self._key:
                self._key = self._keychain.get(NAME) or ""
            if not self._key:
                self._key = sealed.new_key()
                self._keychain.keep(NAME, self._key)
            return self._key

"""How a machine removes itself: it asks for a token in its own name, and deletes what it is part of."""

from __future__ import annotations

import http.client
import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

TIMEOUT_S = 30.0
LONGEST_PAUSE_S = 60.0
_DONE = (404, 409)  # gone already, or being deleted
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Release:
    """`url` is the resource to delete, `token_url` answers with a token that may do it. Where that is refused,
    `instead_url` switches the machine off for good: then it costs little more than its disk."""

    url: str
    token_url: str
    instead_url: str = ""
    ca_file: str = ""

    def carry_out(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Returns when the deletion has been taken on: until then nothing else matters, since the machine costs."""
        pause_s = 1.0
        while True:
            try:
                return self._remove(self._token())
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
                print(f"could not remove this machine: {error}", file=sys.stderr, flush=True)  # noqa: T201  # its journal
            sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _token(self) -> str:
        request = urllib.request.Request(self.token_url, headers={"Metadata": "true"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return str(json.load(answer)["access_token"])

    def _remove(self, token: str) -> None:
        try:
            self._ask("DELETE", self.url, token)
        except urllib.error.HTTPError as error:
            locked = b"ScopeLocked" in error.read()
            if not locked and error.code in _DONE:
                return
            if not self.instead_url or not (locked or error.code in _REFUSED):
                raise
            self._ask("POST", self.instead_url, token)

    def _ask(self, method: str, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(url, b"" if method == "POST" else None, headers, method=method)
        context = ssl.create_default_context(cafile=self.ca_file or None)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context):
            return

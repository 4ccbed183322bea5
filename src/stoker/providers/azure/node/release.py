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
from typing import Any
from urllib.parse import urlsplit

MACHINE = "{machine}"
TIMEOUT_S = 30.0
LONGEST_PAUSE_S = 60.0
WATCH_S = 10.0  # between looks at a deletion
_GONE = 404
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Release:
    """`url` is the resource to delete, `token_url` answers with a token that may do it. Where that is refused,
    `instead_url` switches the machine off for good: then it costs little more than its disk. `MACHINE` in it is the
    machine's own id, which it is told where it gets its token."""

    url: str
    token_url: str
    instead_url: str = ""
    ca_file: str = ""

    def carry_out(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Returns when the deletion has come to its end, which this machine hardly sees: one that is taken on may still
        fail, and then it is asked for again. Until then nothing else matters, since the machine costs."""
        pause_s = 1.0
        while True:
            try:
                token = self._token()
                return self._watch(self._remove(token), token, sleep)
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
                print(f"could not remove this machine: {error}", file=sys.stderr, flush=True)  # noqa: T201  # its journal
            sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _token(self) -> str:
        with self._metadata(self.token_url) as answer:
            return str(json.load(answer)["access_token"])

    def _remove(self, token: str) -> str:
        """Where to ask how it goes; empty: nobody says."""
        try:
            return self._ask("DELETE", self.url, token)[1]
        except urllib.error.HTTPError as error:
            locked = b"ScopeLocked" in error.read()
            if error.code == _GONE:
                return ""
            if not self.instead_url or not (locked or error.code in _REFUSED):
                raise
            return self._ask("POST", self.instead_url.replace(MACHINE, self._own_id()), token)[1]

    def _watch(self, operation: str, token: str, sleep: Callable[[float], None]) -> None:
        """Raises HTTPError where what was taken on has failed."""
        going = bool(operation)
        while going:
            sleep(WATCH_S)
            status, _ = self._ask("GET", operation, token)
            going = status == http.client.ACCEPTED

    def _own_id(self) -> str:
        """Of a machine that was not known by its id before Azure made it; empty where nobody asks."""
        if MACHINE not in self.instead_url:
            return ""
        parts = urlsplit(self.token_url)
        url = f"{parts.scheme}://{parts.netloc}/metadata/instance/compute/resourceId?api-version=2021-02-01&format=text"
        with self._metadata(url) as answer:
            return str(answer.read(1000).decode())

    def _metadata(self, url: str) -> Any:
        """No proxy: the address is the machine's own."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=TIMEOUT_S)

    def _ask(self, method: str, url: str, token: str) -> tuple[int, str]:
        """The status, and where to ask how it goes."""
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(url, b"" if method == "POST" else None, headers, method=method)
        context = ssl.create_default_context(cafile=self.ca_file or None)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            return int(answer.status), str(answer.headers.get("Location") or "")

"""How a VM removes itself: it requests a token for its own identity and deletes itself or its group."""

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
WATCH_S = 10.0  # between polls of a deletion
_GONE = 404
_REFUSED = (401, 403)


@dataclass(frozen=True, slots=True)
class Release:
    """`url` is the resource to delete, `token_url` returns a token that may do it. Where that is refused, `instead_url`
    deallocates the VM, so that little more than its disk is billed. `MACHINE` in it stands for the VM's own id, which
    the metadata service returns."""

    url: str
    token_url: str
    instead_url: str = ""
    ca_file: str = ""

    def carry_out(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Returns when the deletion has finished, which this VM rarely sees. An accepted deletion may still fail, and
        is then requested again. Nothing else matters until then, since the VM is billed."""
        pause_s = 1.0
        while True:
            try:
                token = self._token()
                return self._watch(self._remove(token), token, sleep)
            except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
                print(f"could not remove this VM: {error}", file=sys.stderr, flush=True)  # noqa: T201  # its journal
            sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _token(self) -> str:
        with self._metadata(self.token_url) as answer:
            return str(json.load(answer)["access_token"])

    def _remove(self, token: str) -> str:
        """The URL to poll; empty where Azure gives none."""
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
        """Raises HTTPError where the accepted deletion has failed."""
        going = bool(operation)
        while going:
            sleep(WATCH_S)
            status, _ = self._ask("GET", operation, token)
            going = status == http.client.ACCEPTED

    def _own_id(self) -> str:
        """Of a VM whose id was unknown before Azure created it; empty where it is not needed."""
        if MACHINE not in self.instead_url:
            return ""
        parts = urlsplit(self.token_url)
        url = f"{parts.scheme}://{parts.netloc}/metadata/instance/compute/resourceId?api-version=2021-02-01&format=text"
        with self._metadata(url) as answer:
            return str(answer.read(1000).decode())

    def _metadata(self, url: str) -> Any:
        """No proxy: the address is link-local."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return opener.open(urllib.request.Request(url, headers={"Metadata": "true"}), timeout=TIMEOUT_S)

    def _ask(self, method: str, url: str, token: str) -> tuple[int, str]:
        """The status, and the URL to poll."""
        headers = {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(url, b"" if method == "POST" else None, headers, method=method)
        context = ssl.create_default_context(cafile=self.ca_file or None)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            return int(answer.status), str(answer.headers.get("Location") or "")

"""While a switch is on, records every request to Azure and its response, one JSON line each, without secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stoker.providers.azure.account.account import Account
from stoker.providers.azure.wire.scrubbing import Scrubber

SWITCH = "azure.record"  # next to azure.json: while it exists, it names the file to write to
_HEADERS = ("azure-asyncoperation", "location", "retry-after", "date", "content-type", "x-ms-error-code")


class TrafficRecorder:
    """Reads the switch at each request, so that a running server need not be restarted."""

    def __init__(self, account: Account) -> None:
        self._switch = Path(account.switch) if account.switch else None
        self._scrub = Scrubber(account.subscription, account.tenant, account.client)

    @property
    def on(self) -> bool:
        return self._switch is not None and self._switch.exists()

    def note(
        self, asked: tuple[str, str, Any], status: int, headers: Mapping[str, str], answer: Any, took_s: float = 0.0
    ) -> None:
        """`asked` is method, URL and body. If the file cannot be written, only the line is lost."""
        method, url, body = asked
        scrub, path = self._scrub, urlsplit(url).path
        line = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "method": method,
            "url": scrub.text(url),
            "body": scrub.body(parsed(body), path),
            "status": status,
            "headers": {name: scrub.text(value) for name, value in headers.items() if name.lower() in _HEADERS},
            "answer": scrub.body(parsed(answer), path),
            "took_s": round(took_s, 3),
        }
        with suppress(OSError, ValueError):
            self._write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())

    def _write(self, line: bytes) -> None:
        """Writes a whole line at once: a server and a command may write to the same file."""
        assert self._switch is not None
        target = self._switch.read_text(encoding="utf-8").strip()
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


@contextmanager
def recording(folder: Path, file: Path) -> Iterator[None]:
    """Meanwhile, all requests to Azure, by this program and by the server, are recorded to the file."""
    switch = folder / SWITCH
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)
    switch.write_text(str(file.absolute()), encoding="utf-8")
    try:
        yield
    finally:
        switch.unlink(missing_ok=True)


def parsed(body: Any) -> Any:
    """JSON if it parses; else the text."""
    if isinstance(body, bytes | bytearray):
        body = bytes(body).decode(errors="replace")
    if not isinstance(body, str):
        return body
    try:
        return json.loads(body) if body.strip() else None
    except ValueError:
        return body

"""Sends a request without credentials to a store's address: is it reachable, and what time is it there?"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from stoker.errors import StoreFailed
from stoker.stores.kinds import locate, named

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Reach:
    """`skew_s` is how far this computer's clock is ahead; None where the store sends no Date header."""

    host: str
    took_s: float
    skew_s: float | None


def reach(url: str) -> Reach | None:
    """None for a folder of this computer. Raises StoreFailed without a response."""
    address = endpoint(url)
    if address is None:
        return None
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port
    secured = parts.scheme == "https"
    line = (http.client.HTTPSConnection if secured else http.client.HTTPConnection)(host, port, timeout=TIMEOUT_S)
    start = time.monotonic()
    try:
        line.request("GET", parts.path or "/")
        answer = line.getresponse()
        took_s = time.monotonic() - start
        return Reach(parts.netloc, took_s, _skew_s(answer.getheader("Date"), datetime.now(UTC)))
    except (OSError, http.client.HTTPException) as error:
        raise _unreached(parts.netloc, error) from error
    finally:
        line.close()


def endpoint(url: str) -> str | None:
    """The address of a store URL's service."""
    location = locate(url)
    return named(location.kind).endpoint(location) or None


def _skew_s(date: str | None, now: datetime) -> float | None:
    """The header has whole seconds: half a second is the best estimate."""
    if not date:
        return None
    try:
        return (now - parsedate_to_datetime(date)).total_seconds() - 0.5
    except (TypeError, ValueError):
        return None


def _unreached(host: str, error: Exception) -> StoreFailed:
    match error:
        case socket.gaierror():
            return StoreFailed(f"could not resolve {host}", hint="check the spelling and the network connection")
        case ssl.SSLError():
            return StoreFailed(
                f"could not verify the certificate of {host}: {error.reason}",
                hint="check the URL, or the computer's CA",
            )
        case ConnectionRefusedError():
            return StoreFailed(f"connection refused by {host}", hint="check the port, and that the service is running")
        case TimeoutError():
            return StoreFailed(f"{host} timed out after {TIMEOUT_S:.0f} s", hint="check the firewall and the proxy")
        case _:
            return StoreFailed(f"{host} is unreachable: {error}", hint="check the URL, the firewall and the proxy")

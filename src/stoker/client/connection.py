"""A conversation with a server: plain JSON in and out, and every failure as one of Stoker's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Query = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and the token it asks for."""

    url: str
    token: str = ""
    pid: int = 0
    version: str = ""


class Connection:
    """May be used from several threads. Keeps sockets open between calls.

    `reconnect` is asked for another address when this one does not answer; it may start a server.
    """

    def __init__(self, address: Address, *, reconnect: Callable[[], Address] | None = None) -> None:
        raise NotImplementedError

    def get(self, path: str, query: Query | None = None, *, timeout_s: float = 30.0) -> Any:
        """Repeated over a server restart."""
        raise NotImplementedError

    def post(self, path: str, body: Any = None, *, repeat: bool = True) -> Any:
        """With `repeat` it may be sent twice where the answer to the first was lost."""
        raise NotImplementedError

    def delete(self, path: str) -> Any:
        raise NotImplementedError

    def upload(self, path: str, chunks: Iterable[bytes]) -> Any:
        """Sends a body of unknown length. Never repeated: the chunks are gone."""
        raise NotImplementedError

    def stream(self, path: str, query: Query | None = None) -> tuple[Mapping[str, str], Iterator[bytes]]:
        """The headers, with lower-case names, and the body as it arrives. A body cut short is ServerUnavailable."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

"""A command on the node of a run: what it prints as it comes, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from stoker.client.connection import Connection
from stoker.errors import ServerUnavailable
from stoker.model import wire
from stoker.model.frame import Frame, Kind, frames
from stoker.model.orders import VisitEnd


class Visit:
    """Is under way when it is made, and ends at the latest when whoever made it hangs up."""

    def __init__(self, connection: Connection, run: str, words: Sequence[str]) -> None:
        self._connection = connection
        self._path = f"/v1/runs/{quote(run, safe='')}/visits"
        self.ended: VisitEnd | None = None
        headers, self._pieces = connection.stream(self._path, asking={"words": list(words)})
        self._id = headers["stoker-visit"]

    def frames(self) -> Iterator[Frame]:
        """What it says, until it has ended: `ended` tells how. Raises ServerUnavailable where the server ends first."""
        for frame in frames(self._pieces):
            if frame.kind is Kind.END:
                self.ended = wire.load(VisitEnd, frame.data)
                return
            yield frame
        raise ServerUnavailable("the server ended while the command ran, and the command with it", hint="run it again")

    def end(self) -> None:
        """As Ctrl-C there would. May be called from another thread, and more than once."""
        self._connection.delete(f"{self._path}/{self._id}")

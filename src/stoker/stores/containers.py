"""An Azure store whose runs have containers of their own, since a token can be for a container but not for a prefix.

`runs/<id>/…` lies in the container `<container>-<id>`, everything else in the container itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO
from urllib.parse import quote
from xml.etree import ElementTree

from stoker.errors import NoContainer, StoreFailed
from stoker.stores import Stored, blobclient
from stoker.stores.blobclient import API_VERSION
from stoker.stores.bucket import Bucket, Piece
from stoker.stores.location import Location
from stoker.stores.refusals import refusal
from stoker.stores.wire import Reply, Request, Wire

_LONGEST_CONTAINER = 63
_OF_RUN = re.compile(r"runs/([a-z0-9]+)/(.*)", re.DOTALL)
_RUNS = "runs/"


def container_of(location: Location, key: str) -> tuple[Location, str]:
    """Where a key lies, and what it is called there."""
    found = _OF_RUN.fullmatch(key)
    if not found or len(location.container) + 1 + len(found[1]) > _LONGEST_CONTAINER:
        return location, key
    return replace(location, container=f"{location.container}-{found[1]}"), found[2]


class Account:
    """What concerns containers as such. `sign` is as for a BlobBucket, with rights for the whole account."""

    def __init__(self, location: Location, sign: Callable[[], tuple[str, dict[str, str]]]) -> None:
        self._endpoint = location.endpoint
        self._path = f"/{'/'.join(location.endpoint.split('/')[3:])}".rstrip("/")
        self._sign = sign
        self._wire = Wire(location.endpoint)

    def create(self, container: str) -> None:
        """One that is there already is fine."""
        reply = self._ask("PUT", f"/{container}", "restype=container")
        if reply.status != 201 and reply.headers.get("x-ms-error-code") != "ContainerAlreadyExists":
            self._refuse(reply, container)

    def remove(self, container: str) -> None:
        reply = self._ask("DELETE", f"/{container}", "restype=container")
        if reply.status not in (202, 404):
            self._refuse(reply, container)

    def list(self, prefix: str) -> Iterator[str]:
        marker = ""
        while True:
            query = f"comp=list&maxresults={blobclient.PAGE}&prefix={quote(prefix, safe='')}"
            reply = self._ask("GET", "/", query + (f"&marker={quote(marker, safe='')}" if marker else ""))
            if reply.status != 200:
                self._refuse(reply, "")
            page = ElementTree.fromstring(reply.body)
            yield from (name.text or "" for name in page.iterfind("Containers/Container/Name"))
            marker = page.findtext("NextMarker") or ""
            if not marker:
                return

    def ask_xml(self, query: str, body: bytes) -> ElementTree.Element:
        reply = self._ask("POST", "/", query, body)
        if reply.status != 200:
            self._refuse(reply, "")
        return ElementTree.fromstring(reply.body)

    def _ask(self, method: str, path: str, query: str, body: bytes = b"") -> Reply:
        def make() -> Request:
            token, headers = self._sign()
            target = f"{self._path}{path}?{query}" + (f"&{token}" if token else "")
            return Request(method, target, {"x-ms-version": API_VERSION, **headers}, body)

        return self._wire.ask(make)

    def _refuse(self, reply: Reply, container: str) -> None:
        found = re.search(rb"<Message>(.*?)</Message>", reply.body, re.DOTALL)
        said = found[1].decode(errors="replace") if found else ""
        code = reply.headers.get("x-ms-error-code", "")
        error = refusal(reply.status, code, said, container, f"{self._endpoint}/{container}")
        raise error if isinstance(error, StoreFailed) else StoreFailed(str(error))


class ContainerPerRun:
    """A Bucket made of many. Containers are made when they are first written to."""

    def __init__(self, location: Location, account: Account, open_container: Callable[[Location], Bucket]) -> None:
        self._location = location
        self._account = account
        self._open = open_container
        self._opened: dict[str, Bucket] = {}

    def read(self, name: str, start: int, size: int | None) -> Piece:
        bucket, inside = self._find(name)
        return bucket.read(inside, start, size)

    def stream(self, name: str, start: int, size: int) -> Iterator[memoryview]:
        bucket, inside = self._find(name)
        return bucket.stream(inside, start, size)

    def size(self, name: str) -> int:
        bucket, inside = self._find(name)
        return bucket.size(inside)

    def write(self, name: str, data: bytes | BinaryIO, *, only_new: bool = False) -> int:
        bucket, inside = self._find(name)
        begun = 0 if isinstance(data, bytes) else data.tell() if data.seekable() else -1
        try:
            return bucket.write(inside, data, only_new=only_new)
        except NoContainer:
            self._account.create(container_of(self._location, name)[0].container)
            if not isinstance(data, bytes):
                if begun < 0:
                    raise
                data.seek(begun)
            return bucket.write(inside, data, only_new=only_new)

    def entries(self, prefix: str) -> Iterator[Stored]:
        location, inside = container_of(self._location, prefix)
        if location is not self._location:
            yield from self._below(location, inside, prefix.removesuffix(inside) if inside else prefix)
            return
        yield from self._bucket(location).entries(prefix)
        if not prefix or prefix == _RUNS:
            stem = f"{self._location.container}-"
            for container in list(self._account.list(stem)):
                run = f"{_RUNS}{container.removeprefix(stem)}/"
                found, _ = container_of(self._location, run)
                if found.container == container:
                    yield from self._below(found, "", run)

    def remove(self, name: str) -> None:
        bucket, inside = self._find(name)
        bucket.remove(inside)

    def remove_below(self, prefix: str) -> bool:
        """Removes a run's container as a whole, if that is what lies there."""
        location, inside = container_of(self._location, prefix)
        if location is self._location or inside or location.prefix:
            return False
        self._account.remove(location.container)
        self._opened.pop(location.container, None)
        return True

    def _below(self, location: Location, inside: str, run: str) -> Iterator[Stored]:
        try:
            for one in self._bucket(location).entries(inside):
                yield Stored(run + one.key, one.size_bytes, one.changed_at, one.etag)
        except NoContainer:
            return

    def _find(self, name: str) -> tuple[Bucket, str]:
        location, inside = container_of(self._location, name)
        return self._bucket(location), inside

    def _bucket(self, location: Location) -> Bucket:
        if location.container not in self._opened:
            self._opened[location.container] = self._open(location)
        return self._opened[location.container]

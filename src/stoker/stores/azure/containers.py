"""An Azure store with many containers, since a token can be for a container or for one blob, but not for a prefix.

| keys                  | container                         | whose tokens reach it                        |
|-----------------------|-----------------------------------|----------------------------------------------|
| `runs/<id>/…`         | `<container>-<id>`                | the nodes of that run                        |
| `stoker/data/<name>/` | `<container>-data-<hash of name>` | nodes whose job names the dataset, read only |
| `stoker/environments/<owner>/` | `<container>-env-<hash>` | nodes of that owner's runs             |
| `stoker/…`, code      | `<container>-stoker-own`          | none, but for single blobs                   |
| everything else       | `<container>` itself              | nodes whose job names files in place there   |
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import BinaryIO
from urllib.parse import quote
from xml.etree import ElementTree

from stoker.errors import BadInput, NoContainer, StoreFailed
from stoker.stores import Stored
from stoker.stores.azure import client
from stoker.stores.azure.client import API_VERSION
from stoker.stores.kinds import Location
from stoker.stores.objects.bucket import Bucket, Piece
from stoker.stores.objects.wire import Reply, Request, Wire, refusal

log = logging.getLogger(__name__)

_LONGEST_CONTAINER = 63  # of Azure
_LONGEST_ENDING = 21  # `-` and the id of a run, or `-data-` and a hash
LONGEST_CONTAINER = _LONGEST_CONTAINER - _LONGEST_ENDING
_OF_RUN = re.compile(r"runs/([a-z0-9]+)/(.*)", re.DOTALL)
_OF_DATASET = re.compile(r"stoker/data/([^/]+)/.*", re.DOTALL)
_OF_ENVIRONMENTS = re.compile(r"stoker/environments/([^/]+)/.*", re.DOTALL)
_OWN = re.compile(r"(?:stoker|blobs|snapshots)/.*", re.DOTALL)
_SHARED = {"data": _OF_DATASET, "env": _OF_ENVIRONMENTS}
_RUNS = "runs/"
_OWN_FOLDER = "stoker/"
_DATA = "stoker/data/"
_ENVIRONMENTS = "stoker/environments/"


def check_room(location: Location) -> None:
    """Raises BadInput where the name of the container is too long for the names derived from it."""
    if len(location.container) > LONGEST_CONTAINER or location.container.startswith("$"):
        raise BadInput(
            f"the container name `{location.container}` has {len(location.container)} characters; a store needs one of "
            f"at most {LONGEST_CONTAINER} letters, digits and `-`, because each run gets a container of its own whose "
            f"name is {_LONGEST_ENDING} characters longer",
            hint=f"create a container with a name of at most {LONGEST_CONTAINER} characters",
        )


def container_of(location: Location, key: str) -> tuple[Location, str]:
    """The container of a key, and its name there."""
    if found := _OF_RUN.fullmatch(key):
        return _beside(location, found[1]), found[2]
    for kind, form in _SHARED.items():
        if found := form.fullmatch(key):
            # Names of datasets may be longer than those of containers. Two stores in one container share nothing.
            digest = hashlib.sha256(f"{location.prefix}\0{found[1]}".encode()).digest()
            return _beside(location, f"{kind}-{base64.b32encode(digest).decode()[:15].lower()}"), key
    return (_beside(location, "stoker-own") if _OWN.fullmatch(key) else location), key


def _beside(location: Location, ending: str) -> Location:
    """There is no fallback: others have a token for any other container."""
    name = f"{location.container}-{ending}"
    if len(name) > _LONGEST_CONTAINER:
        raise StoreFailed(f"`{name}` is longer than the {_LONGEST_CONTAINER} characters of a container name")
    return replace(location, container=name)


class BlobContainers:
    """Operations on containers themselves. `sign` is as for a BlobBucket, with rights for the whole account."""

    def __init__(self, location: Location, sign: Callable[[], tuple[str, dict[str, str]]]) -> None:
        self._endpoint = location.endpoint
        self._path = f"/{'/'.join(location.endpoint.split('/')[3:])}".rstrip("/")
        self._sign = sign
        self._wire = Wire(location.endpoint)

    def create(self, container: str) -> None:
        """An existing one is fine."""
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
            query = f"comp=list&maxresults={client.PAGE}&prefix={quote(prefix, safe='')}"
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


class ManyContainers(Bucket):
    """A Bucket of many containers, each created at its first write."""

    def __init__(
        self, location: Location, account: BlobContainers, open_container: Callable[[Location], Bucket]
    ) -> None:
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

    def prepare(self, name: str) -> None:
        """Creates the container of the name: a token holder cannot."""
        self._account.create(container_of(self._location, name)[0].container)

    def entries(self, prefix: str) -> Iterator[Stored]:
        location, inside = container_of(self._location, prefix)
        if location != self._location:
            yield from self._below(location, inside, prefix.removesuffix(inside) if inside else prefix)
            if prefix in (_OWN_FOLDER, _DATA):
                yield from self._beside(f"{self._location.container}-data-", prefix)
            if prefix in (_OWN_FOLDER, _ENVIRONMENTS):
                yield from self._beside(f"{self._location.container}-env-", prefix)
            return
        yield from self._bucket(location).entries(prefix)
        if not prefix or prefix == _RUNS:
            yield from self._of_runs()
        if not prefix:
            yield from self._beside(f"{self._location.container}-stoker-own", prefix)
            for kind in _SHARED:
                yield from self._beside(f"{self._location.container}-{kind}-", prefix)

    def _of_runs(self) -> Iterator[Stored]:
        """A container that cannot be listed hides only itself."""
        stem = f"{self._location.container}-"
        for container in list(self._account.list(stem)):
            run = f"{_RUNS}{container.removeprefix(stem)}/"
            if _OF_RUN.fullmatch(run):
                try:
                    yield from self._below(replace(self._location, container=container), "", run)
                except StoreFailed as error:
                    log.warning("skipped the container %s: %s", container, error.message)

    def _beside(self, stem: str, prefix: str) -> Iterator[Stored]:
        """Of containers whose blobs are named by their whole key."""
        for container in list(self._account.list(stem)):
            yield from self._below(replace(self._location, container=container), prefix, "")

    def remove(self, name: str) -> None:
        bucket, inside = self._find(name)
        bucket.remove(inside)

    def remove_whole(self, prefix: str) -> bool:
        """Deletes a run's container as a whole, if the prefix is one: a node's token can write anywhere in it, and run
        ids are unique, whatever the prefix of their store."""
        location, inside = container_of(self._location, prefix)
        if inside or not _OF_RUN.fullmatch(prefix):
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

"""Azure Blob with nothing but the standard library: agents carry this file."""

from __future__ import annotations

import base64
import secrets
import time
import zlib
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import BinaryIO, TypeVar
from urllib.parse import parse_qs, quote, unquote
from xml.etree import ElementTree

from stoker.errors import StoreFailed
from stoker.stores import Store, Stored
from stoker.stores.kinds import Location
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.objects.http import BLOCK_BYTES, Blocks, HttpBucket, block_size, first_block
from stoker.stores.objects.wire import Body, Reply, Request, listing, refusal, token_ended, within
from stoker.stores.transfer.verified import FileRegion, Still, known_hash

API_VERSION = "2021-12-02"
PAGE = 5000  # entries per page of a listing: the maximum of the service
_SAFE = "/~!$'()*,:;=@-._"

Block = TypeVar("Block", bytes, FileRegion)


def open_blobs(location: Location, token: str) -> Store:
    """`token` is a SAS for the container."""
    return ObjectStore(location.url, BlobBucket(location, lambda: (token, {})))


class BlobBucket(HttpBucket):
    """A container. `sign` returns what to add to every query, and to every header: a SAS, or a bearer token."""

    ranged = "x-ms-range"
    writer_header = "x-ms-meta-writer"
    removal: Mapping[str, str] = {"x-ms-delete-snapshots": "include"}

    def __init__(self, location: Location, sign: Callable[[], tuple[str, Mapping[str, str]]]) -> None:
        super().__init__(location.url, location.prefix, location.endpoint)
        self._path = f"/{'/'.join(location.endpoint.split('/')[3:])}".rstrip("/") + f"/{location.container}"
        self._sign = sign
        self._blocks = Blocks()

    def write(self, name: str, data: bytes | BinaryIO, *, only_new: bool = False) -> int:
        if isinstance(data, Still) and data.left > BLOCK_BYTES and data.can_be_split:
            sent = self._send(name, data.sha256, data.regions(block_size(data.left)), lambda _: data.state)
            data.check()
            return self._commit(name, sent, only_new)
        first, rest = first_block(data)
        second = next(rest, b"")
        if not second:
            self._put(name, {}, first, only_new, {"x-ms-blob-type": "BlockBlob"})
            return len(first)
        blocks = chain((first, second), rest)
        sent = self._send(name, known_hash(data), blocks, lambda block: f"{zlib.crc32(block):08x}")
        return self._commit(name, sent, only_new)

    def _send(
        self, name: str, sha256: str, blocks: Iterator[Block], state: Callable[[Block], str]
    ) -> list[tuple[str, int]]:
        """Names and sizes of the blocks. If the hash of the content is known, they are named by it, so that they need
        not be sent twice, and by a state: a file that changed may have left some with other bytes."""
        upload = sha256[:16] or secrets.token_hex(8)  # blocks of different contents never mix
        there = self._uncommitted(name) if sha256 else set()

        def send(number: int, block: Block) -> tuple[str, int]:
            id = f"{upload}-{state(block) if sha256 else 'once':0>8}-{number:08d}"
            id = base64.b64encode(id.encode()).decode()
            if id not in there:
                reply = self._ask("PUT", name, {"comp": "block", "blockid": id}, body=block)
                self._check(reply, name, 201)
            elif isinstance(block, FileRegion):
                block.skip()
            return id, len(block)

        return self._blocks.send(blocks, send)

    def _commit(self, name: str, sent: list[tuple[str, int]], only_new: bool) -> int:
        listed = "".join(f"<Latest>{id}</Latest>" for id, _ in sent)
        self._put(name, {"comp": "blocklist"}, f"<BlockList>{listed}</BlockList>".encode(), only_new, {})
        return sum(size for _, size in sent)

    def _uncommitted(self, name: str) -> set[str]:
        """Blocks of an interrupted upload: the service keeps them for a week."""
        reply = self._ask("GET", name, {"comp": "blocklist", "blocklisttype": "uncommitted"})
        if reply.status != 200:
            return set()
        return {one.text or "" for one in ElementTree.fromstring(reply.body).iterfind("UncommittedBlocks/Block/Name")}

    def entries(self, prefix: str) -> Iterator[Stored]:
        query = {"restype": "container", "comp": "list", "maxresults": str(PAGE), "prefix": self._prefix + prefix}
        while True:
            reply = self._ask("GET", "", query)
            self._check(reply, "", 200)
            page = listing(reply, self.place)
            for blob in page.iter("Blob"):
                yield self._entry(blob)
            marker = page.findtext("NextMarker") or ""
            if not marker:
                return
            query = {**query, "marker": marker}

    def _put(
        self, name: str, query: Mapping[str, str], body: bytes, only_new: bool, headers: Mapping[str, str]
    ) -> None:
        writer = secrets.token_hex(8) if only_new else ""
        own = {**headers, "If-None-Match": "*", self.writer_header: writer} if only_new else headers
        self._check_written(self._ask("PUT", name, query, own, body), name, writer)

    def _request(
        self, method: str, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: Body
    ) -> Callable[[], Request]:
        path = f"{self._path}/{quote(self._prefix + name, safe=_SAFE)}" if name else self._path
        asked = [f"{key}={quote(value, safe='')}" for key, value in query.items()]

        def make() -> Request:
            token, signed = self._sign()
            whole = "&".join((*asked, token) if token else asked)
            own = {"x-ms-version": API_VERSION, **signed, **headers}
            return Request(method, f"{path}?{whole}" if whole else path, own, body)

        return make

    def _refusal(self, reply: Reply, name: str) -> StoreFailed:
        code = reply.headers.get("x-ms-error-code", "") or within(reply.body, "Code")
        why = within(reply.body, "AuthenticationErrorDetail") or within(reply.body, "Message")
        if reply.status == 403 and 0 < (end := sas_expires_at(self._sign()[0])) < time.time():
            return token_ended(end, self.place)
        return refusal(reply.status, code, why, name, self.place)

    def _entry(self, blob: ElementTree.Element) -> Stored:
        about, name = blob.find("Properties"), blob.find("Name")
        if about is None or name is None:
            raise StoreFailed(f"`{self.place}` returned an unreadable listing")
        return Stored(
            _named(name).removeprefix(self._prefix),
            int(about.findtext("Content-Length") or 0),
            parsedate_to_datetime(about.findtext("Last-Modified") or "").timestamp(),
            (about.findtext("Etag") or "").strip('"'),
        )


def _named(name: ElementTree.Element) -> str:
    """Characters that XML does not support are percent-encoded, and marked as such."""
    return unquote(name.text or "") if name.get("Encoded") == "true" else name.text or ""


def sas_expires_at(sas: str) -> float:
    """In unix seconds; 0 where it does not say."""
    end = parse_qs(sas).get("se", [""])[0]
    for form in ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d"):
        try:
            return float(timegm(time.strptime(end, form)))
        except ValueError:
            continue
    return 0.0

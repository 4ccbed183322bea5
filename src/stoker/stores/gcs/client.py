"""Google Cloud Storage by its JSON API, with nothing but the standard library: agents carry this file."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

from stoker.errors import StoreFailed, StoreUnavailable
from stoker.stores import Store, Stored
from stoker.stores.kinds import Location, named
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.objects.http import HttpBucket, first_block
from stoker.stores.objects.wire import Body, Reply, Request, refusal

_STEP_BYTES = 256 << 10  # every part of an upload but the last is a multiple of this
_INCOMPLETE = 308
_REACHED = re.compile(r"bytes=0-(\d+)")
_FIELDS = "items(name,size,updated,generation),nextPageToken"


def open_bucket(location: Location, token: Callable[[], str]) -> Store:
    """`token` returns a currently valid OAuth token; empty for a public bucket."""
    return ObjectStore(location.url, GcsBucket(location, token))


class GcsBucket(HttpBucket):
    content: Mapping[str, str] = {"alt": "media"}

    def __init__(self, location: Location, token: Callable[[], str]) -> None:
        endpoint = named(location.kind).endpoint(location)
        super().__init__(location.url, location.prefix, endpoint)
        self._path = urlsplit(endpoint).path
        self._bucket = f"/storage/v1/b/{location.container}/o"
        self._token = token

    def size(self, name: str) -> int:
        return int(self._about(name)["size"])

    def write(self, name: str, data: bytes | BinaryIO, *, only_new: bool = False) -> int:
        first, rest = first_block(data)
        second = next(rest, b"")
        if second:
            return self._write_parts(name, chain((first, second), rest), only_new)
        writer = secrets.token_hex(8) if only_new else ""
        boundary = secrets.token_hex(16)
        about = json.dumps({"metadata": {"writer": writer}} if only_new else {})
        kinds = ("application/json", "application/octet-stream")
        begin, middle = (f"--{boundary}\r\nContent-Type: {kind}\r\n\r\n".encode() for kind in kinds)
        body = begin + about.encode() + b"\r\n" + middle + first + f"\r\n--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        reply = self._upload(name, "multipart", only_new, headers, body)
        self._check_written(reply, name, writer)
        return len(first)

    def entries(self, prefix: str) -> Iterator[Stored]:
        query = {"prefix": self._prefix + prefix, "fields": _FIELDS, "maxResults": "1000"}
        while True:
            reply = self._ask("GET", "", query)
            self._check(reply, "", 200)
            page = self._read(reply)
            for one in page.get("items", ()):
                yield self._entry(one)
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _write_parts(self, name: str, blocks: Iterator[bytes], only_new: bool) -> int:
        """One part after the other, as the service requires: each response says how much it has."""
        writer = secrets.token_hex(8) if only_new else ""
        about = json.dumps({"metadata": {"writer": writer}} if only_new else {}).encode()
        headers = {"Content-Type": "application/json"}
        begun = self._upload(name, "resumable", only_new, headers, about)
        self._check(begun, name, 200, 201)
        parts = urlsplit(begun.headers.get("location", ""))
        target = f"{parts.path}?{parts.query}"
        sent, waiting = 0, b""
        for block in blocks:
            waiting += block
            ready = (len(waiting) - 1) // _STEP_BYTES * _STEP_BYTES  # something remains for the last part
            while ready:
                reached = self._send_part(target, name, sent, waiting[:ready])
                waiting, ready, sent = waiting[reached - sent :], ready - (reached - sent), reached
        total = sent + len(waiting)
        ranged = {"Content-Range": f"bytes {sent}-{total - 1}/{total}"}
        self._check_written(self._put(target, ranged, waiting), name, writer)
        return total

    def _send_part(self, target: str, name: str, start: int, data: bytes) -> int:
        """How many bytes of the object the service has now."""
        reply = self._put(target, {"Content-Range": f"bytes {start}-{start + len(data) - 1}/*"}, data)
        self._check(reply, name, _INCOMPLETE)
        found = _REACHED.fullmatch(reply.headers.get("range", ""))
        reached = int(found[1]) + 1 if found else 0
        if not start < reached <= start + len(data):
            raise StoreUnavailable(f"`{self.place}` has lost a part of `{name}`", hint="try again in a minute")
        return reached

    def _writer(self, name: str) -> str | None:
        found: str | None = self._about(name).get("metadata", {}).get("writer")
        return found

    def _about(self, name: str) -> dict[str, Any]:
        reply = self._ask("GET", name, {"fields": "size,metadata"})
        self._check(reply, name, 200)
        return self._read(reply)

    def _upload(self, name: str, way: str, only_new: bool, headers: Mapping[str, str], body: bytes) -> Reply:
        asked = {"uploadType": way, "name": self._prefix + name}
        asked |= {"ifGenerationMatch": "0"} if only_new else {}  # 0: of an object that is not there
        target = f"{self._path}/upload{self._bucket}?{urlencode(asked, quote_via=quote)}"
        return self._wire.ask(lambda: Request("POST", target, {**headers, **self._signed()}, body))

    def _put(self, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        return self._wire.ask(lambda: Request("PUT", target, {**headers, **self._signed()}, body))

    def _request(
        self, method: str, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: Body
    ) -> Callable[[], Request]:
        inside = f"/{quote(self._prefix + name, safe='')}" if name else ""
        asked = f"?{urlencode(query, quote_via=quote)}" if query else ""
        target = f"{self._path}{self._bucket}{inside}{asked}"
        return lambda: Request(method, target, {**headers, **self._signed()}, body)

    def _signed(self) -> dict[str, str]:
        token = self._token()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _refusal(self, reply: Reply, name: str) -> StoreFailed:
        why = self._why(reply)
        code = "NoSuchBucket" if reply.status == 404 and "bucket does not exist" in why else ""
        return refusal(reply.status, code, why, name, self.place)

    def _why(self, reply: Reply) -> str:
        """The body of a refusal is JSON, or text where bytes were requested."""
        try:
            return str(json.loads(reply.body)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return reply.body[:200].decode(errors="replace").strip()

    def _read(self, reply: Reply) -> dict[str, Any]:
        try:
            found = json.loads(reply.body)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise StoreFailed(f"`{self.place}` returned an unreadable response")
        return found

    def _entry(self, one: Mapping[str, str]) -> Stored:
        try:
            name, changed = (
                one["name"].removeprefix(self._prefix),
                datetime.fromisoformat(one["updated"].replace("Z", "+00:00")),
            )
            return Stored(name, int(one["size"]), changed.timestamp(), str(one["generation"]))
        except (KeyError, ValueError, TypeError, AttributeError):
            raise StoreFailed(f"`{self.place}` returned an unreadable listing") from None

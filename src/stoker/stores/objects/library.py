"""Object stores of server and client, over obstore. It is slow to load: kinds import it only when needed."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnauthenticatedError
from obstore.store import ObjectStore as AnyStore

from stoker.errors import AlreadyThere, StoreDenied, StoreFailed
from stoker.stores import PIECE_BYTES, Stored
from stoker.stores.objects.bucket import Bucket, Piece
from stoker.stores.objects.http import Lanes, first_block
from stoker.stores.objects.wire import refusal, token_ended, unreachable
from stoker.stores.transfer.verified import known_hash

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

RETRY: RetryConfig = {
    "max_retries": 5,
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=8), "base": 2},
    "retry_timeout": timedelta(seconds=30),
}
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(.*?)</Code>")
_WHY = re.compile(
    r"<AuthenticationErrorDetail>(.*?)</AuthenticationErrorDetail>|<Message>(.*?)(?:</Message>|\n)", re.DOTALL
)
_PAST_THE_END = ("StartTooLarge", "status code: 416", "ParseContentRange")  # the last: of an empty object
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_BULK = re.compile(r"Bulk delete request failed.*\(code: (\w+)\)", re.DOTALL)


class ObstoreBucket(Bucket):
    """obstore refuses names that are not paths, and with them whole listings: `raw` lists and deletes."""

    def __init__(
        self,
        place: str,
        store: AnyStore,
        raw: Bucket | None = None,
        expires_at: float = 0.0,
        large: Bucket | None = None,
    ) -> None:
        self.place = place
        self._raw = raw
        self._large = large
        self._store = store
        self._expires_at = expires_at
        self._lanes = Lanes()

    def read(self, name: str, start: int, size: int | None) -> Piece:
        options: Any = {}
        if size is not None:
            options = {"range": (start, start + size)}
        elif start:
            options = {"range": {"offset": start}}
        try:
            found = obstore.get(self._store, name, options=options)
            return Piece(found.bytes().to_bytes(), found.meta["size"])
        except (BaseError, OSError) as error:
            if any(words in str(error) for words in _PAST_THE_END):
                return Piece(b"", self.size(name))
            self._fail(error, name)

    def stream(self, name: str, start: int, size: int) -> Iterator[memoryview]:
        if self._large:  # reuses the same memory, which costs less than new memory for each
            yield from self._large.stream(name, start, size)
            return
        try:
            found = obstore.get(self._store, name, options={"range": (start, start + size)})
            for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield memoryview(piece)
        except (BaseError, OSError) as error:
            if not any(words in str(error) for words in _PAST_THE_END):
                self._fail(error, name)

    def size(self, name: str) -> int:
        try:
            return obstore.head(self._store, name)["size"]
        except (BaseError, OSError) as error:
            self._fail(error, name)

    def write(self, name: str, data: bytes | BinaryIO, *, only_new: bool = False) -> int:
        if self._large and known_hash(data):
            return self._large.write(name, data, only_new=only_new)
        first, rest = first_block(data)
        if only_new:  # in one request, since a block upload has no condition
            whole = b"".join((first, *rest))
            self._create(name, whole)
            return len(whole)
        second = next(rest, b"")
        sizes: list[int] = []

        def counted() -> Iterator[bytes]:
            for block in chain((first, second), rest):
                sizes.append(len(block))
                yield block

        try:
            if not second:
                obstore.put(self._store, name, first, use_multipart=False)
                return len(first)
            with self._lanes.share() as share:
                obstore.put(self._store, name, counted(), chunk_size=len(first), max_concurrency=share)
        except (BaseError, FileNotFoundError, PermissionError, TimeoutError, ConnectionError) as error:
            self._fail(error, name)
        return sum(sizes)

    def entries(self, prefix: str) -> Iterator[Stored]:
        if self._raw:
            yield from self._raw.entries(prefix)
            return
        try:
            for batch in obstore.list(self._store, prefix.removesuffix("/") or None, chunk_size=1000):
                for one in batch:
                    changed = one["last_modified"].timestamp()
                    yield Stored(one["path"], one["size"], changed, (one["e_tag"] or "").strip('"'))
        except (BaseError, OSError) as error:
            self._fail(error, "")

    def remove(self, name: str) -> None:
        if self._raw:
            self._raw.remove(name)
            return
        try:
            obstore.delete(self._store, name)
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            found = _BULK.search(str(error))
            if found and found[1] in ("404", "NoSuchKey"):
                return
            self._fail(error, name)

    def _create(self, name: str, whole: bytes) -> None:
        """The writer's mark on the object shows whether a lost response was a success."""
        writer = secrets.token_hex(8)
        try:
            obstore.put(self._store, name, whole, attributes={"writer": writer}, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            if not self._is_mine(name, writer):
                raise AlreadyThere(f"`{name}` already exists in the store") from error
        except (BaseError, OSError) as error:
            if not self._is_mine(name, writer):
                self._fail(error, name)

    def _is_mine(self, name: str, writer: str) -> bool:
        try:
            return obstore.get(self._store, name, options={"head": True}).attributes.get("writer") == writer
        except (BaseError, OSError):
            return False

    def _fail(self, error: Exception, name: str) -> NoReturn:
        text = str(error)
        status, code, why = _STATUS.search(text), _CODE.search(text), _WHY.search(text)
        if status and status[1] == "403" and 0 < self._expires_at < time.time():
            raise token_ended(self._expires_at, self.place) from error
        if status:
            said = (why[1] or why[2] or "") if why else ""
            raise refusal(int(status[1]), code[1] if code else "", said, name, self.place) from error
        if isinstance(error, FileNotFoundError):
            raise refusal(404, code[1] if code else "", "", name, self.place) from error
        if isinstance(error, UnauthenticatedError):  # raised by a login, and wrapped by obstore
            raise StoreDenied(text.split("\n")[0].rpartition("StoreDenied: ")[2]) from error
        first = re.sub(r"\?\S*", "", text.split("\n")[0])  # a URL's query may contain a token
        if found := _CERTIFICATE.search(text):
            raise unreachable(self.place, f"its certificate is not trusted ({found[1]})") from error
        if "HTTP error" in text or "error sending request" in text or "retries" in text:
            raise unreachable(self.place, first) from error
        raise StoreFailed(f"`{self.place}` failed for `{name}`: {first}") from error


def client_options(endpoint: str) -> ClientConfig:
    return {"allow_http": endpoint.startswith("http:"), "timeout": "120s", "connect_timeout": "5s"}

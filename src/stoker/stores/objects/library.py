"""Object stores of server and client, over obstore. Loading it takes a while: `opening` does so when it must."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnauthenticatedError
from obstore.store import AzureStore, S3Store

from stoker.errors import AlreadyThere, BadInput, StoreDenied, StoreFailed
from stoker.stores import Store, Stored
from stoker.stores.azure.client import BlobBucket, sas_expires_at
from stoker.stores.azure.containers import Account, ManyContainers, check_room
from stoker.stores.azure.login import Login
from stoker.stores.azure.rights import AzureRights, account_sas, rights
from stoker.stores.credential import Credential, CredentialKind
from stoker.stores.kinds import Location, StoreKind
from stoker.stores.objects.blocks import Lanes, first_block
from stoker.stores.objects.bucket import Bucket, Piece
from stoker.stores.objects.refusals import refusal, token_ended, unreachable
from stoker.stores.objects.segments import ObjectStore
from stoker.stores.s3.client import DEFAULT_REGION, S3Bucket
from stoker.stores.s3.sigv4 import Keys
from stoker.stores.streaming import PIECE_BYTES
from stoker.stores.transfer.verified import known_hash

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

_HOUR_S = 3600.0
_RETRY: RetryConfig = {
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


def open_objects(location: Location, credential: Credential) -> Store:
    if location.kind is StoreKind.S3:
        raw = S3Bucket(location, _keys(credential)) if credential.kind is CredentialKind.S3_KEY else None
        return ObjectStore(location.url, ObstoreBucket(location.url, _open_s3(location, credential), raw))
    place, held = rights(location, credential)
    login = Login(held.login) if held.login else None

    def open_container(one: Location) -> ObstoreBucket:
        raw = BlobBucket(one, _signing(one, held, login))
        # What is large goes by blocks whose names tell what is in them, so that it can be gone on with.
        large = raw if held.sas else None
        return ObstoreBucket(one.url, _open_azure(one, held, login), raw, sas_expires_at(held.sas), large)

    if not held.splits:
        return ObjectStore(location.url, open_container(place))
    check_room(place)
    return ObjectStore(location.url, ManyContainers(place, open_account(place, held, login), open_container))


def open_account(location: Location, held: AzureRights, login: Login | None) -> Account:
    return Account(location, _signing(location, held, login))


def _signing(location: Location, held: AzureRights, login: Login | None) -> Callable[[], tuple[str, dict[str, str]]]:
    def sign() -> tuple[str, dict[str, str]]:
        if login:
            return "", {"Authorization": f"Bearer {login.token()}"}
        return (account_sas(location, held.key, _HOUR_S) if held.key else held.sas), {}

    return sign


def _keys(credential: Credential) -> Keys:
    return Keys(credential.values["id"], credential.values["secret"], credential.values.get("session", ""))


class ObstoreBucket:
    """obstore refuses names that are no paths, and all others of a listing with them: `raw` lists and removes."""

    def __init__(
        self,
        place: str,
        store: AzureStore | S3Store,
        raw: Bucket | None = None,
        expires_at: float = 0.0,
        large: BlobBucket | None = None,
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
            return Piece(bytes(found.bytes()), found.meta["size"])
        except (BaseError, OSError) as error:
            if any(words in str(error) for words in _PAST_THE_END):
                return Piece(b"", self.size(name))
            self._fail(error, name)

    def stream(self, name: str, start: int, size: int) -> Iterator[memoryview]:
        if self._large:  # through the same memory again and again, which costs less than memory of its own for each
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
        if only_new:  # goes in one request, since a row of blocks has no condition
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
        """An answer that was lost is found out by the writer's mark on the object."""
        writer = secrets.token_hex(8)
        try:
            obstore.put(self._store, name, whole, attributes={"writer": writer}, mode="create", use_multipart=False)
        except AlreadyExistsError as error:
            if not self._is_mine(name, writer):
                raise AlreadyThere(f"the store already has `{name}`") from error
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
        if isinstance(error, UnauthenticatedError):  # raised by a login, and wrapped on its way through
            raise StoreDenied(text.split("\n")[0].rpartition("StoreDenied: ")[2]) from error
        first = re.sub(r"\?\S*", "", text.split("\n")[0])  # a URL's query may hold a token
        if found := _CERTIFICATE.search(text):
            raise unreachable(self.place, f"its certificate is not trusted ({found[1]})") from error
        if "HTTP error" in text or "error sending request" in text or "retries" in text:
            raise unreachable(self.place, first) from error
        raise StoreFailed(f"`{self.place}` cannot do this with `{name}`: {first}") from error


def _open_azure(location: Location, held: AzureRights, login: Login | None) -> AzureStore:
    settings: dict[str, Any] = {"account_name": location.account, "endpoint": location.endpoint}
    provider: Callable[[], Any] | None = None
    if held.key:
        settings["account_key"] = held.key
    elif held.sas:
        settings["sas_key"] = held.sas
    elif login:
        provider = _token_of(login)
    else:
        settings["skip_signature"] = True
    return AzureStore(
        location.container,
        prefix=location.prefix.removesuffix("/") or None,
        client_options=_client(location.endpoint),
        retry_config=_RETRY,
        credential_provider=provider,
        **settings,
    )


def _token_of(login: Login) -> Callable[[], dict[str, Any]]:
    def provide() -> dict[str, Any]:
        token = login.token()
        return {"token": token, "expires_at": datetime.fromtimestamp(login.expires_at, UTC)}

    return provide


def _open_s3(location: Location, credential: Credential) -> S3Store:
    settings: dict[str, Any] = {"region": location.region or DEFAULT_REGION}
    if location.endpoint:
        settings["endpoint"] = location.endpoint
    if credential.kind is CredentialKind.S3_KEY:
        settings["access_key_id"] = credential.values["id"]
        settings["secret_access_key"] = credential.values["secret"]
        if credential.values.get("session"):
            settings["session_token"] = credential.values["session"]
    elif credential.kind is CredentialKind.NONE:
        settings["skip_signature"] = True
    elif credential.kind is not CredentialKind.LOGIN:  # a login is what the machine's environment says
        raise BadInput(f"a credential of the kind `{credential.kind}` does not open `{location.url}`")
    return S3Store(
        location.container,
        prefix=location.prefix.removesuffix("/") or None,
        client_options=_client(location.endpoint),
        retry_config=_RETRY,
        **settings,
    )


def _client(endpoint: str) -> ClientConfig:
    return {"allow_http": endpoint.startswith("http:"), "timeout": "120s", "connect_timeout": "5s"}

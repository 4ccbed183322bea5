"""S3 with nothing but the standard library: agents carry this file. Signs requests for Amazon's services (version 4),
and requests temporary keys for parts of a bucket from the store's token service."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any, BinaryIO
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import unescape

from stoker.errors import BadInput, StoreDenied, StoreFailed
from stoker.stores import Store, Stored
from stoker.stores.access import NONE, Access, Credential, Route
from stoker.stores.kinds import Location
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.objects.http import Blocks, HttpBucket, first_block
from stoker.stores.objects.wire import Body, Reply, Request, Wire, listing, refusal, within

DEFAULT_REGION = "us-east-1"
_SPACE = re.compile(r"\{[^}]*\}")


def open_bucket(location: Location, token: str) -> Store:
    """`token` is the JSON of temporary keys, as `keys_text` writes it."""
    return ObjectStore(location.url, S3Bucket(location, keys_from_text(token)))


def keys_text(keys: Keys) -> str:
    return json.dumps([keys.id, keys.secret, keys.session])


def keys_from_text(text: str) -> Keys:
    try:
        id, secret, session = json.loads(text)
        return Keys(str(id), str(secret), str(session))
    except (ValueError, TypeError):
        raise BadInput("this is not a token for S3") from None


class S3Bucket(HttpBucket):
    ranged = "range"
    writer_header = "x-amz-meta-writer"

    def __init__(self, location: Location, keys: Keys) -> None:
        region = location.region or DEFAULT_REGION
        endpoint = location.endpoint or f"https://{location.container}.s3.{region}.amazonaws.com"
        super().__init__(location.url, location.prefix, endpoint)
        # Services other than Amazon's seldom have a host name per bucket, so the bucket is in the path.
        self._path = f"{urlsplit(endpoint).path}/{location.container}" if location.endpoint else ""
        self._host = urlsplit(endpoint).netloc
        self._secure = endpoint.startswith("https:")
        self._signer = Signer(keys, region, "s3")
        self._blocks = Blocks()

    def write(self, name: str, data: bytes | BinaryIO, *, only_new: bool = False) -> int:
        first, rest = first_block(data)
        second = next(rest, b"")
        if second:
            return self._write_parts(name, chain((first, second), rest), only_new)
        writer = secrets.token_hex(8) if only_new else ""
        own = {"if-none-match": "*", self.writer_header: writer} if only_new else {}
        self._commit(self._ask("PUT", name, headers=own, body=first), name, writer)
        return len(first)

    def entries(self, prefix: str) -> Iterator[Stored]:
        query = {"list-type": "2", "encoding-type": "url", "prefix": self._prefix + prefix}
        while True:
            reply = self._ask("GET", "", query)
            self._check(reply, "", 200)
            page = listing(reply, self.place)
            space = found[0] if (found := _SPACE.match(page.tag)) else ""
            encoded = page.findtext(f"{space}EncodingType") == "url"  # not every service supports it
            for one in page.iter(f"{space}Contents"):
                yield self._entry(one, space, encoded=encoded)
            token = page.findtext(f"{space}NextContinuationToken")
            if not token:
                return
            query = {**query, "continuation-token": token}

    def _write_parts(self, name: str, blocks: Iterator[bytes], only_new: bool) -> int:
        writer = secrets.token_hex(8) if only_new else ""
        begun = self._ask("POST", name, {"uploads": ""}, {self.writer_header: writer} if only_new else {})
        self._check(begun, name, 200)
        upload = unescape(within(begun.body, "UploadId"))

        def send(number: int, block: bytes) -> tuple[str, int]:
            reply = self._ask("PUT", name, {"partNumber": str(number + 1), "uploadId": upload}, body=block)
            self._check(reply, name, 200)
            return reply.headers["etag"], len(block)

        try:
            sent = self._blocks.send(blocks, send)
            parts = (
                f"<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag></Part>" for n, (tag, _) in enumerate(sent, 1)
            )
            body = f"<CompleteMultipartUpload>{''.join(parts)}</CompleteMultipartUpload>".encode()
            own = {"if-none-match": "*"} if only_new else {}
            self._commit(self._ask("POST", name, {"uploadId": upload}, own, body), name, writer)
        except BaseException:
            self._ask("DELETE", name, {"uploadId": upload})  # parts cost money until they are given up
            raise
        return sum(size for _, size in sent)

    def _commit(self, reply: Reply, name: str, writer: str) -> None:
        self._check_written(reply, name, writer)
        if reply.status == 200 and b"<Error>" in reply.body:  # S3 may start a good response and end it with an error
            raise refusal(503, within(reply.body, "Code"), within(reply.body, "Message"), name, self.place)

    def _request(
        self, method: str, name: str, query: Mapping[str, str], headers: Mapping[str, str], body: Body
    ) -> Callable[[], Request]:
        path = f"{self._path}/{quote(self._prefix + name, safe='/-_.~')}" if name else self._path or "/"
        target = f"{path}?{canonical_query(query)}" if query else path
        assert isinstance(body, bytes)  # a part is signed as a whole
        payload = payload_hash(body, secure=self._secure)

        def make() -> Request:
            signed = self._signer.headers(method, self._host, path, query, headers, payload)
            return Request(method, target, signed, body)

        return make

    def _refusal(self, reply: Reply, name: str) -> StoreFailed:
        return refusal(reply.status, within(reply.body, "Code"), within(reply.body, "Message"), name, self.place)

    def _entry(self, one: ElementTree.Element, space: str, *, encoded: bool) -> Stored:
        name = one.findtext(f"{space}Key") or ""
        changed = one.findtext(f"{space}LastModified")
        if not changed:
            raise StoreFailed(f"`{self.place}` returned an unreadable listing")
        return Stored(
            (unquote_plus(name) if encoded else name).removeprefix(self._prefix),
            int(one.findtext(f"{space}Size") or 0),
            datetime.fromisoformat(changed.replace("Z", "+00:00")).timestamp(),
            (one.findtext(f"{space}ETag") or "").strip('"'),
        )


UNSIGNED = "UNSIGNED-PAYLOAD"


@dataclass(frozen=True, slots=True)
class Keys:
    """`session` is empty for permanent keys."""

    id: str
    secret: str = field(repr=False)
    session: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Signer:
    keys: Keys
    region: str
    service: str

    def headers(
        self, method: str, host: str, path: str, query: Mapping[str, str], own: Mapping[str, str], payload: str
    ) -> dict[str, str]:
        """All headers to send. `path` is quoted as it is sent, `payload` is the body's sha256 or UNSIGNED."""
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        headers = {**own, "host": host, "x-amz-date": now, "x-amz-content-sha256": payload}
        if self.keys.session:
            headers["x-amz-security-token"] = self.keys.session
        lines = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
        names = ";".join(sorted(lines))
        listed = "".join(f"{name}:{lines[name]}\n" for name in sorted(lines))
        asked = "\n".join((method, path, canonical_query(query), listed, names, payload))
        scope = f"{now[:8]}/{self.region}/{self.service}/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", now, scope, hashlib.sha256(asked.encode()).hexdigest()))
        signature = hmac.new(self._key(now[:8]), text.encode(), hashlib.sha256).hexdigest()
        headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.keys.id}/{scope}, SignedHeaders={names}, Signature={signature}"
        )
        return headers

    def _key(self, day: str) -> bytes:
        key = f"AWS4{self.keys.secret}".encode()
        for part in (day, self.region, self.service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key


def canonical_query(query: Mapping[str, str]) -> str:
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def payload_hash(body: bytes | memoryview, *, secure: bool) -> str:
    """TLS protects the bytes already; hashing them would be most of the cost of an upload."""
    return UNSIGNED if secure and body else hashlib.sha256(body).hexdigest()


_SHORTEST_S = 900
_LONGEST_S = 12 * 3600
_ANY_ROLE = "arn:aws:iam::000000000000:role/stoker"  # services without roles still require one


def grant_s3(
    location: Location, credential: Credential, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    prefixes = sorted({*reads, *writes})
    if credential.kind == NONE:
        raise StoreDenied(f"`{location.url}` has no credential, so a node cannot get a part of it")
    if "id" not in credential.values:
        raise StoreDenied(
            f"a `{credential.kind}` for S3 cannot be restricted for a node", hint="stoker store add --s3-key"
        )
    lasting_s = min(max(int(for_s), _SHORTEST_S), _LONGEST_S)
    keys, expires_at = _temporary(location, credential, policy(location, reads, writes), lasting_s)
    token = keys_text(keys)
    routes = [Route(one, replace(location, prefix=location.prefix + one).url, token, one in writes) for one in prefixes]
    return Access(tuple(routes), expires_at)


def policy(location: Location, reads: Sequence[str], writes: Sequence[str]) -> dict[str, Any]:
    """The rights of the temporary keys: never more than those of the keys they are made from. A prefix that does not
    end with `/` is one object, which can be read, not listed."""
    bucket = f"arn:aws:s3:::{location.container}"
    asked = {*reads, *writes}
    folders = sorted(f"{location.prefix}{one}*" for one in asked if not one or one.endswith("/"))
    objects = sorted(f"{location.prefix}{one}" for one in asked if one and not one.endswith("/"))
    statements: list[dict[str, Any]] = [
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{bucket}/{one}" for one in folders + objects]}
    ]
    if folders:
        only = {"StringLike": {"s3:prefix": folders}}
        listing = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [bucket], "Condition": only}
        statements.append(listing)
    if writes:
        resources = sorted(f"{bucket}/{location.prefix}{one}*" for one in writes)
        actions = ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        statements.append({"Effect": "Allow", "Action": actions, "Resource": resources})
    return {"Version": "2012-10-17", "Statement": statements}


def _temporary(location: Location, credential: Credential, limits: dict[str, Any], for_s: int) -> tuple[Keys, float]:
    values = credential.values
    region = location.region or DEFAULT_REGION
    endpoint = location.endpoint or f"https://sts.{region}.amazonaws.com"
    asked = {"Version": "2011-06-15", "DurationSeconds": str(for_s), "Policy": json.dumps(limits)}
    if location.endpoint or values.get("role"):
        role = values.get("role") or _ANY_ROLE
        asked |= {"Action": "AssumeRole", "RoleArn": role, "RoleSessionName": "stoker"}
    else:  # keys of a user, who needs no role for it
        asked |= {"Action": "GetFederationToken", "Name": "stoker"}
    body = urlencode(asked).encode()
    signer = Signer(Keys(values["id"], values["secret"], values.get("session", "")), region, "sts")
    form = {"content-type": "application/x-www-form-urlencoded"}
    host = urlsplit(endpoint).netloc

    def make() -> Request:
        signed = signer.headers("POST", host, "/", {}, form, payload_hash(body, secure=False))
        return Request("POST", "/", signed, body)

    try:
        reply = Wire(endpoint).ask(make)
    except StoreFailed as error:
        raise StoreDenied(f"the token service of `{location.url}` does not answer: {error.message}") from error
    found = {
        name: within(reply.body, name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    }
    if reply.status != 200 or not all(found.values()):
        said = " ".join((within(reply.body, "Code"), within(reply.body, "Message"))).strip() or f"status {reply.status}"
        raise StoreDenied(
            f"`{location.url}` refused temporary keys for a part of it: {said}",
            hint="nodes elsewhere require a store with a token service (STS); runs on this computer do not",
        )
    keys = Keys(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
    return keys, _moment(found["Expiration"], for_s)


def _moment(text: str, for_s: int) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return time.time() + for_s

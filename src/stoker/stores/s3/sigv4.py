"""Signs requests for Amazon's services (version 4). Standard library only: agents carry this file."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

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

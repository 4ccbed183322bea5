"""OAuth tokens of Google: of a service account or a login, and restricted ones for parts of a bucket."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode, urlsplit

from stoker.errors import BadInput, StoreDenied
from stoker.stores.access import NONE, Access, Credential, Route
from stoker.stores.kinds import Grant, Location
from stoker.stores.objects.wire import Request, Wire

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_EXCHANGE = "https://sts.googleapis.com/v1/token"
_PUBLIC = "https://oauth2.googleapis.com/token"  # the token service of keys of the public Google
_EARLY_S = 300.0  # a token is renewed this long before it expires
_LASTS_S = 3600  # the maximum that Google allows
_MOST_RULES = 10  # of one restricted token
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_HINT = "log in with `gcloud auth login`, or use the key of a service account: stoker store add --service-account"


class Tokens:
    """Requests a token once, and again shortly before it expires. Thread-safe."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._lock = threading.Lock()
        self._token = ""
        self.expires_at = 0.0

    @property
    def public(self) -> bool:
        return self._credential.kind == NONE

    def token(self) -> str:
        """Empty for a public bucket. Raises StoreDenied without a login."""
        if self.public:
            return ""
        with self._lock:
            if time.time() > self.expires_at - _EARLY_S:
                self._token, self.expires_at = self._ask()
            return self._token

    def _ask(self) -> tuple[str, float]:
        values = self._credential.values
        return _of_account(values["client_email"], values["private_key"], values["token_uri"]) if values else _login()


def grant_gcs(location: Location, credential: Credential, part: Grant) -> Access:
    """A token with a boundary: only these rights of the credential, below these prefixes. It expires with the token
    that it is made from, after an hour at most."""
    if credential.kind == NONE:
        raise StoreDenied(f"`{location.url}` has no credential, so a node cannot get a part of it")
    held = Tokens(credential)
    asked = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": held.token(),
        "subject_token_type": _ACCESS_TOKEN,
        "requested_token_type": _ACCESS_TOKEN,
        "options": json.dumps(boundary(location, part)),
    }
    token, expires_at = _exchange(_exchange_uri(credential), asked, held.expires_at)
    routes = [
        Route(one, replace(location, prefix=location.prefix + one).url, token, one in part.writes)
        for one in part.prefixes
    ]
    return Access(tuple(routes), min(expires_at, time.time() + part.for_s))


def boundary(location: Location, part: Grant) -> dict[str, Any]:
    """The rights of a restricted token. A prefix that does not end with `/` is one object, which can be read, not
    listed."""
    bucket = f"projects/_/buckets/{location.container}"
    reads = [one for one in part.prefixes if one not in part.writes]
    rules = []
    for role, prefixes in (("storage.objectViewer", reads), ("storage.objectUser", list(part.writes))):
        for start in range(0, len(prefixes), _MOST_RULES // 2):
            parts = [_condition(bucket, location.prefix + one) for one in prefixes[start : start + _MOST_RULES // 2]]
            rules.append(
                {
                    "availableResource": f"//storage.googleapis.com/{bucket}",
                    "availablePermissions": [f"inRole:roles/{role}"],
                    "availabilityCondition": {"expression": " || ".join(parts)},
                }
            )
    if len(rules) > _MOST_RULES:
        raise StoreDenied(
            f"a token for `{location.url}` cannot be restricted to {len(part.prefixes)} prefixes",
            hint="move what the run reads into fewer folders",
        )
    return {"accessBoundary": {"accessBoundaryRules": rules}}


def _condition(bucket: str, prefix: str) -> str:
    name = _quoted(f"{bucket}/objects/{prefix}")
    if prefix and not prefix.endswith("/"):
        return f"resource.name == {name}"
    listed = f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith({_quoted(prefix)})"
    return f"resource.name.startsWith({name}) || {listed}"


def _quoted(text: str) -> str:
    """As a string of the expression language; a key may contain anything."""
    return "'" + "".join(f"\\u{ord(one):04x}" if one in "'\\" or ord(one) < 32 else one for one in text) + "'"


def _of_account(email: str, private_key: str, token_uri: str) -> tuple[str, float]:
    now = int(time.time())
    claims = {"iss": email, "scope": _SCOPE, "aud": token_uri, "iat": now, "exp": now + _LASTS_S}
    text = b".".join(_encoded(json.dumps(one).encode()) for one in ({"alg": "RS256", "typ": "JWT"}, claims))
    assertion = text + b"." + _encoded(_signature(private_key, text))
    grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    return _exchange(token_uri, {"grant_type": grant, "assertion": assertion.decode()}, now + _LASTS_S)


def _signature(private_key: str, text: bytes) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization  # here, because only these keys need it
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    try:
        key = serialization.load_pem_private_key(private_key.encode(), None)
    except (ValueError, TypeError):
        raise BadInput("the private key of the service account is unreadable") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise BadInput("the private key of the service account is not an RSA key")
    return key.sign(text, padding.PKCS1v15(), hashes.SHA256())


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _login() -> tuple[str, float]:
    gcloud = shutil.which("gcloud")
    if not gcloud:
        raise StoreDenied("not logged in to Google Cloud: the command `gcloud` was not found", hint=_HINT)
    argv = [gcloud, "auth", "print-access-token"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode or not done.stdout.strip():
        said = (done.stderr.strip() or "no output").splitlines()[-1]
        raise StoreDenied(f"gcloud has no token: {said}", hint=_HINT)
    return done.stdout.strip(), time.time() + 2 * _EARLY_S  # its expiry is unknown; asking again is cheap


def _exchange_uri(credential: Credential) -> str:
    """On the host of the key's token service, where that is not the public one."""
    uri = urlsplit(credential.values.get("token_uri", _PUBLIC))
    return _EXCHANGE if uri.netloc == urlsplit(_PUBLIC).netloc else f"{uri.scheme}://{uri.netloc}/v1/token"


def _exchange(uri: str, asked: dict[str, str], latest: float) -> tuple[str, float]:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = urlencode(asked).encode()
    reply = Wire(uri).ask(lambda: Request("POST", urlsplit(uri).path or "/", form, body))
    try:
        found = json.loads(reply.body)
        token, lasts_s = str(found["access_token"]), float(found.get("expires_in", _LASTS_S))
    except (ValueError, KeyError, TypeError):
        why = reply.body[:200].decode(errors="replace").split("\n")[0]
        raise StoreDenied(f"Google refused a token: status {reply.status} {why}".strip(), hint=_HINT) from None
    return token, min(time.time() + lasts_s, latest)

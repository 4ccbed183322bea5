"""An Azure login instead of a key: a service principal's token, and from it tokens for nodes. Azurite checks both."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from services import Azurite, run_azurite
from stoker.errors import StoreDenied
from stoker.model.workspace import layout
from stoker.stores.access import Access, Credential, Route
from stoker.stores.kinds import grant
from stoker.stores.opening import open_access, open_store


def jwt(lasting_s: float) -> str:
    """As Microsoft Entra makes them, for a principal of this test; Azurite looks at everything but the signature."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com",
        "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
        "iat": now - 60,
        "nbf": now - 60,
        "exp": int(now + lasting_s),
        "oid": "23657296-5cd5-45b0-a809-d972a7f4dfe1",
        "tid": "dd0d0df1-06c3-436c-8034-4b9a153097ce",
    }
    parts = ({"alg": "RS256", "typ": "JWT"}, claims)
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in parts) + ".c2ln"


class Authority(BaseHTTPRequestHandler):
    asked = 0

    def do_POST(self) -> None:
        asked = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        Authority.asked += 1
        right = self.path == "/tenant/oauth2/v2.0/token" and asked["client_secret"] == ["hush"]
        answer = (
            {"access_token": jwt(3600), "expires_in": 3600} if right else {"error_description": "AADSTS7000215: no"}
        )
        body = json.dumps(answer).encode()
        self.send_response(200 if right else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def secure_azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """Over TLS, which bearer tokens require, with a certificate that this test trusts."""
    folder = tmp_path_factory.mktemp("tls")
    ca, own = ["-CA", "ca", "-CAkey", "ca.key"], ["-addext", "subjectAltName=IP:127.0.0.1"]
    leaf = ["-addext", "basicConstraints=critical,CA:FALSE"]
    for name, more in (("ca", []), ("cert", [*ca, *own, *leaf])):
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        argv += [*more, "-keyout", f"{name}.key", "-out", name]
        subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    flags = ("--oauth", "basic", "--cert", str(folder / "cert"), "--key", str(folder / "cert.key"))
    with pytest.MonkeyPatch.context() as patch, run_azurite(*flags, scheme="https") as running:
        patch.setenv("SSL_CERT_FILE", str(folder / "ca"))
        yield running


@pytest.fixture(scope="module")
def authority() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Authority)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def login(authority: str, secret: str = "hush") -> Credential:
    values = {"tenant": "tenant", "client": "client", "secret": secret, "authority": authority}
    return Credential("login", values)


def test_a_service_principal_reads_and_writes(secure_azurite: Azurite, authority: str) -> None:
    store = open_store(secure_azurite.new_container(), login(authority))
    before = Authority.asked
    store.put("data/x", b"shared")
    store.put("runs/aa11/x", b"one")
    assert store.get("runs/aa11/x") == b"one"
    assert {one.key for one in store.list("")} == {"data/x", "runs/aa11/x"}
    assert Authority.asked == before + 1


def test_a_node_gets_a_token_that_the_login_signed(secure_azurite: Azurite, authority: str) -> None:
    url = secure_azurite.new_container()
    whole = open_store(url, login(authority))
    whole.put("data/x", b"shared")
    whole.put("runs/aa11/x", b"one")
    access = grant(url, login(authority), reads=["data/"], writes=["runs/aa11/"], for_s=600)
    assert all("skoid=" in route.token and "hush" not in route.token for route in access.routes)
    node = open_access(access)
    node.put("runs/aa11/y", b"two")
    assert node.get("data/x") == b"shared"
    assert {one.key for one in node.list("runs/aa11")} == {"runs/aa11/x", "runs/aa11/y"}
    tokens = {route.prefix: route.token for route in access.routes}
    reading = Credential("sas", {"token": tokens["data/"]})
    with pytest.raises(StoreDenied):
        open_store(url, reading).put("data/x", b"no")


@pytest.mark.parametrize("kind", ["login", "key"])
def test_a_token_is_for_one_blob_and_for_https_alone(secure_azurite: Azurite, authority: str, kind: str) -> None:
    url = secure_azurite.new_container()
    credential = login(authority) if kind == "login" else secure_azurite.account_key
    whole, code, other = open_store(url, credential), layout.code("1" * 64), layout.code("2" * 64)
    whole.put(code, b"mine")
    whole.put(other, b"theirs")
    (route,) = grant(url, credential, reads=[code], writes=[], for_s=600).routes
    asked = parse_qs(route.token)
    assert (asked["spr"], asked["sr"], asked["sp"]) == (["https"], ["b"], ["r"])
    node = open_access(Access((route, Route(layout.CODE, route.url.rpartition("/")[0], route.token, True))))
    assert node.get(code) == b"mine"
    for attempt in (
        lambda: node.get(other),
        lambda: list(node.list(layout.CODE)),
        lambda: node.put(other, b"x"),
        lambda: node.delete(other),
    ):
        with pytest.raises(StoreDenied):
            attempt()
    for wider in ("sp=rw", "sp=racwdl", "sr=c"):
        name = wider.partition("=")[0]
        changed = "&".join(wider if part.startswith(f"{name}=") else part for part in route.token.split("&"))
        forged = open_access(Access((Route(route.prefix, route.url, changed),)))
        with pytest.raises(StoreDenied):
            forged.get(code)


def test_a_principal_that_cannot_log_in_is_told_why(secure_azurite: Azurite, authority: str) -> None:
    url = secure_azurite.new_container()
    with pytest.raises(StoreDenied, match="AADSTS7000215"):
        grant(url, login(authority, "wrong"), reads=[], writes=["runs/1/"], for_s=60)
    with pytest.raises(StoreDenied, match="service principal"):
        open_store(url, login(authority, "wrong")).get("x")

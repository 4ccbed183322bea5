"""Google Cloud Storage keeps the contract of stores: by its JSON API on nodes, and by its XML API through obstore."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from services import free_port
from stoker.errors import BadInput, NoContainer, StoreDenied
from stoker.stores import Store
from stoker.stores.access import Credential, MountFolders, Route
from stoker.stores.gcs.client import GcsBucket
from stoker.stores.gcs.tokens import boundary
from stoker.stores.kinds import Grant, grant, kind_of, locate
from stoker.stores.objects.bucket import ObjectStore
from stoker.stores.opening import AccessStore, open_access, open_granted, open_store
from stoker.testing.stores import StoreContract

_PROGRAM = Path(__file__).parents[1] / "gcsemulator.py"


class Google:
    """The emulator's address, and a token service that checks signatures and records its requests."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.asked: list[dict[str, str]] = []
        self._key = rsa.generate_private_key(65537, 2048)
        self.tokens = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.tokens.serve_forever, daemon=True).start()

    def new_bucket(self) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        connection = HTTPConnection(self.endpoint.removeprefix("http://"), timeout=30)
        connection.request("POST", "/storage/v1/b", json.dumps({"name": name}), {"Content-Type": "application/json"})
        assert connection.getresponse().status == 200
        connection.close()
        return f"gs://{name}?endpoint={self.endpoint}"

    @property
    def account(self) -> Credential:
        pem = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        uri = f"http://127.0.0.1:{self.tokens.server_port}/token"
        values = {"client_email": "me@project", "private_key": pem.decode(), "token_uri": uri}
        return Credential("service-account", values)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        google = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                read = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(read).items()}
                google.asked.append(form)
                if "assertion" in form:
                    text, _, signature = form["assertion"].rpartition(".")
                    signed = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
                    google._key.public_key().verify(signed, text.encode(), padding.PKCS1v15(), hashes.SHA256())
                told = json.dumps({"access_token": f"token-{len(google.asked)}", "expires_in": 3599}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture(scope="module")
def google() -> Iterator[Google]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(_PROGRAM), str(port)], stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline().startswith(b"Running on")
        found = Google(f"http://127.0.0.1:{port}")
        yield found
        found.tokens.shutdown()
        found.tokens.server_close()
    finally:
        process.kill()
        process.wait()


class OnGoogle(StoreContract):
    steps = 8
    listed = 300  # the emulator gives all of them in one page

    @pytest.fixture(autouse=True)
    def _service(self, google: Google) -> None:
        self.google = google


class TestGcsByServiceAccount(OnGoogle):
    def make(self, folder: Path) -> Store:
        return open_store(self.google.new_bucket(), self.google.account)

    def again(self, store: Store) -> Store:
        assert isinstance(store, ObjectStore)
        return ObjectStore(store.url, store.bucket)


class TestGcsOfANode(OnGoogle):
    def make(self, folder: Path) -> Store:
        url = self.google.new_bucket().replace("?", "/deep/er ü?")
        return open_access(grant(url, self.google.account, reads=[], writes=[""], for_s=900))

    def again(self, store: Store) -> Store:
        assert isinstance(store, AccessStore)
        return open_granted(store.access)


def test_a_url_of_google_is_read_and_written_the_same() -> None:
    for url in ("gs://bucket/deep/er", "gs://bucket?endpoint=http://127.0.0.1:9"):
        assert locate(url).url == url
    with pytest.raises(BadInput):
        locate("gs://B")


def test_a_node_gets_a_token_for_its_prefixes_and_the_rights_it_needs(google: Google) -> None:
    url = google.new_bucket()
    google.asked.clear()
    access = grant(url, google.account, reads=["data/", "code/x"], writes=["runs/1/"], for_s=86400)
    assert {route.prefix: route.writes for route in access.routes} == {"data/": False, "code/x": False, "runs/1/": True}
    assert access.expires_at <= time.time() + 3600
    rules = json.loads(google.asked[-1]["options"])["accessBoundary"]["accessBoundaryRules"]
    bucket = locate(url).container
    said = {rule["availablePermissions"][0]: rule["availabilityCondition"]["expression"] for rule in rules}
    start = f"projects/_/buckets/{bucket}/objects/"
    assert f"resource.name == '{start}code/x'" in said["inRole:roles/storage.objectViewer"]
    assert "runs/1/" not in said["inRole:roles/storage.objectViewer"]
    assert f"resource.name.startsWith('{start}runs/1/')" in said["inRole:roles/storage.objectUser"]
    assert "data/" not in said["inRole:roles/storage.objectUser"]


def test_a_key_cannot_end_the_text_of_a_condition() -> None:
    rules = boundary(locate("gs://bucket"), Grant(["a' || true || '/"], [], 60))
    expression = rules["accessBoundary"]["accessBoundaryRules"][0]["availabilityCondition"]["expression"]
    assert "' || true" not in expression


def test_nothing_is_granted_of_a_bucket_that_has_no_credential(google: Google) -> None:
    with pytest.raises(StoreDenied):
        grant(google.new_bucket(), None, reads=[], writes=["runs/1/"], for_s=60)


def test_a_bucket_that_does_not_exist_is_reported(google: Google) -> None:
    with pytest.raises(NoContainer):
        list(open_store(f"gs://nobody-has-this?endpoint={google.endpoint}").list(""))


def test_rclone_gets_a_token_by_its_environment_alone() -> None:
    (program,) = kind_of("gs://bucket").mounts()
    folders = MountFolders(Path("/n/1"), Path("/n/1-blocks"), Path("/n/1.sock"))
    plan = program.plan("/bin/rclone", Route("data/", "gs://bucket/data", "hush"), folders, 1 << 30)
    assert plan.argv[:3] == ("/bin/rclone", "mount", "data:bucket/data")
    assert not any("hush" in word for word in plan.argv)
    assert plan.env["RCLONE_CONFIG_DATA_ACCESS_TOKEN"] == "hush"


def test_odd_names_are_left_out_of_listings_and_go_with_their_folder(google: Google) -> None:
    """Whoever has a token can make them. obstore would refuse the whole listing, or name them otherwise."""
    url = google.new_bucket()
    store = open_store(url, google.account)
    assert isinstance(store, ObjectStore)
    store.put("runs/1/log", b"x")
    bucket = GcsBucket(locate(url), lambda: "")
    for name in ("runs/1/a/", "runs/1/a//b", "runs/1/x\x7fy", "runs/1/a\nb"):
        bucket.write(name, b"x")
    assert [one.key for one in store.list("runs/1")] == ["runs/1/log"]
    assert store.left_out == 3
    store.remove_below("runs/1")
    assert list(store.bucket.entries("")) == []

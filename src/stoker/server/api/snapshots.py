"""Code on its way in: manifests, and the files that the store lacks."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from stoker.errors import BadInput, Corrupt, Missing, NotFound
from stoker.model.job.fields import shown
from stoker.model.snapshot import EntryKind, Snapshot, checked_path
from stoker.server.api.http.reading import Bounds, body
from stoker.server.api.http.shape import BYTES, OUTSIDE, answer, gives, service_of, takes
from stoker.server.code.shelf import CodeShelf
from stoker.server.rounds.outside import call

router = APIRouter(tags=["snapshots"])
_IN_MEMORY_BYTES = 8 << 20
_MANIFEST = Bounds(64 << 20, 3_000_000)  # some 400,000 files
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


_HASH = re.compile("[0-9a-f]{64}")
_LACKED = {"missing": tuple[str, ...]}
_MISSING = {"id": str, "missing": tuple[str, ...]}


@router.post("/snapshots", openapi_extra=takes(Snapshot), responses=gives(_MISSING, 404, *OUTSIDE))
async def register(request: Request, store: str = "") -> Response:
    """Returns what is missing; once nothing is, the snapshot is stored. `store` names another store than the
    workspace's."""
    snapshot = await body(request, Snapshot, _MANIFEST)
    await call(_check, snapshot)
    shelf = await call(_shelf, request, store)
    missing = await call(shelf.register, snapshot)
    return answer({"id": snapshot.id, "missing": missing})


@dataclass(frozen=True, slots=True)
class BlobHashes:
    """Of the files of a snapshot."""

    hashes: tuple[str, ...]


@router.post("/blobs/missing", openapi_extra=takes(BlobHashes), responses=gives(_LACKED, *OUTSIDE))
async def missing(request: Request) -> Response:
    """Which of these files the store lacks. Nothing is kept or expected: a plan asks this, and needs no manifest for
    it, which takes ten times as long to read."""
    asked = await body(request, BlobHashes, _MANIFEST)
    if wrong := [one for one in asked.hashes if not _HASH.fullmatch(one)]:
        raise BadInput(f"hashes: found {shown(wrong[0])}, expected 64 hexadecimal digits")
    shelf = await call(_shelf, request, "")
    return answer({"missing": await call(shelf.lacks, frozenset(asked.hashes))})


@router.get("/snapshots/{id}", responses=gives(Snapshot, 404, *OUTSIDE))
async def show(request: Request, id: Sha256) -> Response:
    try:
        return answer(await call(service_of(request).shelves.snapshot, id))
    except Missing:
        raise NotFound(f"snapshot `{id}` not found") from None


@router.get("/blobs/{sha256}", responses=gives(bytes, 404, *OUTSIDE, media=BYTES), response_class=Response)
async def blob(request: Request, sha256: Sha256) -> Response:
    """The content of one file of a snapshot."""
    try:
        data = await call(service_of(request).shelves.blob, sha256)
    except Missing:
        raise NotFound(f"file `{sha256}` not found") from None
    return Response(data, media_type="application/octet-stream")


@router.post(
    "/blobs",
    openapi_extra=takes(bytes, media=BYTES),
    responses=gives({"stored": int}, 404, *OUTSIDE),
)
async def upload(request: Request, store: str = "") -> Response:
    """A tar stream whose members are named by their sha256. May be repeated."""
    shelf = await call(_shelf, request, store)
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
        async for chunk in request.stream():
            await call(spool.write, chunk)
        spool.seek(0)
        try:
            stored = await call(shelf.take, spool)  # type: ignore[arg-type]  # it reads
        except Corrupt as error:
            error.http_status = BadInput.http_status  # it was sent like that: the store is not the cause
            raise
    return answer({"stored": stored})


def _check(snapshot: Snapshot) -> None:
    for at, entry in enumerate(snapshot.entries):
        checked_path(entry.path)
        if entry.kind is EntryKind.FILE and not _HASH.fullmatch(entry.sha256):
            raise BadInput(f"entries[{at}].sha256: found {shown(entry.sha256)}, expected 64 hexadecimal digits")


def _shelf(request: Request, store: str) -> CodeShelf:
    shelves = service_of(request).shelves
    return shelves.of(store) if store else shelves.workspace

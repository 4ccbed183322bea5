"""Code on its way in: manifests, and the files the store lacks."""

from __future__ import annotations

import re
import tempfile
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from stoker.errors import BadInput, Corrupt, Missing, NotFound
from stoker.model.job.fields import shown
from stoker.model.snapshot import EntryKind, Snapshot, checked_path
from stoker.server.api.reading import Bounds, body
from stoker.server.api.shape import BYTES, OUTSIDE, answer, gives, service_of, takes
from stoker.server.code.shelf import Shelf
from stoker.server.rounds.outside import call

router = APIRouter(tags=["snapshots"])
_IN_MEMORY_BYTES = 8 << 20
_MANIFEST = Bounds(64 << 20, 3_000_000)  # some 400,000 files
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


_MISSING = {"id": str, "missing": tuple[str, ...]}


@router.post("/snapshots", openapi_extra=takes(Snapshot), responses=gives(_MISSING, 404, *OUTSIDE))
async def register(request: Request, keep: bool = True, store: str = "") -> Response:
    """Answers with what is missing; once nothing is, the snapshot is stored. A plan asks without keeping. `store` names
    another one than the workspace's."""
    snapshot = await body(request, Snapshot, _MANIFEST)
    await call(_check, snapshot)
    shelf = await call(_shelf, request, store)
    missing = await call(shelf.register if keep else shelf.missing, snapshot)
    return answer({"id": snapshot.id, "missing": missing})


@router.get("/snapshots/{id}", responses=gives(Snapshot, 404, *OUTSIDE))
async def show(request: Request, id: Sha256) -> Response:
    try:
        return answer(await call(service_of(request).shelves.snapshot, id))
    except Missing:
        raise NotFound(f"there is no snapshot `{id}`") from None


@router.get("/blobs/{sha256}", responses=gives(bytes, 404, *OUTSIDE, media=BYTES), response_class=Response)
async def blob(request: Request, sha256: Sha256) -> Response:
    """The content of one file of a snapshot."""
    try:
        data = await call(service_of(request).shelves.blob, sha256)
    except Missing:
        raise NotFound(f"there is no file `{sha256}`") from None
    return Response(data, media_type="application/octet-stream")


@router.post(
    "/blobs",
    openapi_extra=takes(bytes, media=BYTES),
    responses=gives({"stored": int}, 404, *OUTSIDE),
)
async def upload(request: Request, store: str = "") -> Response:
    """A tar stream whose members are named by their sha256. Repeating it is harmless."""
    shelf = await call(_shelf, request, store)
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
        async for chunk in request.stream():
            await call(spool.write, chunk)
        spool.seek(0)
        try:
            stored = await call(shelf.take, spool)  # type: ignore[arg-type]  # it reads
        except Corrupt as error:
            error.http_status = BadInput.http_status  # it was sent like that: no store is at fault
            raise
    return answer({"stored": stored})


def _check(snapshot: Snapshot) -> None:
    for at, entry in enumerate(snapshot.entries):
        checked_path(entry.path)
        if entry.kind is EntryKind.FILE and not re.fullmatch("[0-9a-f]{64}", entry.sha256):
            raise BadInput(f"entries[{at}].sha256: found {shown(entry.sha256)}, expected 64 hexadecimal digits")


def _shelf(request: Request, store: str) -> Shelf:
    shelves = service_of(request).shelves
    return shelves.of(store) if store else shelves.workspace

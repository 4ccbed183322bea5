"""Code on its way in: manifests, and the files the store lacks."""

from __future__ import annotations

import tempfile

from fastapi import APIRouter, Request, Response

from stoker.errors import Missing, NotFound
from stoker.model import layout, wire
from stoker.model.snapshot import Snapshot, checked_path
from stoker.server.api.shape import answer, body, gives, service_of, takes
from stoker.server.outside import call
from stoker.server.shelf import Shelf

router = APIRouter(tags=["snapshots"])
_IN_MEMORY_BYTES = 8 << 20


@router.post("/snapshots", openapi_extra=takes(Snapshot))
async def register(request: Request, keep: bool = True, store: str = "") -> Response:
    """Answers with what is missing; once nothing is, the snapshot is stored. A plan asks without keeping. `store` names
    another one than the workspace's."""
    snapshot = await body(request, Snapshot)
    for entry in snapshot.entries:
        checked_path(entry.path)
    shelf = await call(_shelf, request, store)
    missing = await call(shelf.missing, snapshot)
    if keep and not missing:
        await call(shelf.keep, snapshot)
    return answer({"id": snapshot.id, "missing": missing})


@router.get("/snapshots/{id}", responses=gives(Snapshot))
async def show(request: Request, id: str) -> Response:
    try:
        return answer(wire.load(Snapshot, await call(service_of(request).shelves.find, layout.snapshot(id))))
    except Missing:
        raise NotFound(f"there is no snapshot `{id}`") from None


@router.get("/blobs/{sha256}")
async def blob(request: Request, sha256: str) -> Response:
    """The content of one file of a snapshot."""
    try:
        data = await call(service_of(request).shelves.find, layout.blob(sha256))
    except Missing:
        raise NotFound(f"there is no file `{sha256}`") from None
    return Response(data, media_type="application/octet-stream")


@router.post("/blobs")
async def upload(request: Request, store: str = "") -> Response:
    """A tar stream whose members are named by their sha256. Repeating it is harmless."""
    shelf = await call(_shelf, request, store)
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
        async for chunk in request.stream():
            await call(spool.write, chunk)
        spool.seek(0)
        stored = await call(shelf.take, spool)  # type: ignore[arg-type]  # it reads
    return answer({"stored": stored})


def _shelf(request: Request, store: str) -> Shelf:
    shelves = service_of(request).shelves
    return shelves.of(store) if store else shelves.workspace

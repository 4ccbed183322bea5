"""Outputs: what there is, and the bytes of it."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from stoker.model import layout
from stoker.model.snapshot import EntryKind
from stoker.server.api.shape import answer, service_of
from stoker.server.landing import manifest
from stoker.server.outside import call
from stoker.stores.blobstream import blob_stream
from stoker.stores.readahead import open_in_order

router = APIRouter(tags=["outputs"])


@router.get("/runs/{name}/outputs")
async def listing(request: Request, name: str) -> Response:
    """The newest attempt's output files. `complete` is true once they will not change any more."""
    service = service_of(request)
    run = await service.ledger.find(name)
    found = await call(manifest, service.stores.of(run), run)
    attempt = run.attempt.number if run.attempt else 0
    return answer({"attempt": attempt, "entries": found.entries, "complete": run.state.ended})


@router.get("/runs/{name}/outputs.tar")
async def contents(request: Request, name: str) -> Response:
    """A tar stream of the contents, each once, named by sha256."""
    service = service_of(request)
    run = await service.ledger.find(name)
    store = service.stores.of(run)
    found = await call(manifest, store, run)
    sizes = {entry.sha256: entry.size_bytes for entry in found.entries if entry.kind is EntryKind.FILE}
    contents = open_in_order(store, [(layout.output(run.id, sha256), size) for sha256, size in sizes.items()])
    items = ((sha256, size, partial(next, contents)) for sha256, size in sizes.items())
    return StreamingResponse(blob_stream(items), media_type="application/x-tar")

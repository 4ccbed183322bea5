"""Files of a run: what there is, and the bytes of it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from stoker.model.run.run import Run
from stoker.model.snapshot import Entry
from stoker.server.api.shape import OUTSIDE, answer, gives, service_of
from stoker.server.results import parcels
from stoker.server.results.parcels import Parcel
from stoker.server.rounds.outside import call
from stoker.stores import Store
from stoker.stores.transfer.readahead import open_in_order
from stoker.stores.trees.blobstream import blob_stream

router = APIRouter(tags=["outputs"])


class Kind(StrEnum):
    """Which files of a run."""

    OUTPUTS = "outputs"  # without the checkpoint that comes with them
    CHECKPOINT = "checkpoint"
    STRAY = "stray"


_LISTING = {"attempt": int, "entries": tuple[Entry, ...], "complete": bool}
_TAR = "application/x-tar"
_PARCELS = {Kind.OUTPUTS: parcels.outputs, Kind.CHECKPOINT: parcels.checkpoint, Kind.STRAY: parcels.stray}


@router.get("/runs/{name}/outputs", responses=gives(_LISTING, 404, *OUTSIDE))
async def listing(request: Request, name: str) -> Response:
    """The newest attempt's output files, and of a run that has ended its newest checkpoint unless that is large.
    `complete` is true once they will not change any more."""
    return await _list(request, name, parcels.brought)


@router.get("/runs/{name}/outputs.tar", responses=gives(bytes, 404, *OUTSIDE, media=_TAR), response_class=Response)
async def contents(request: Request, name: str) -> Response:
    """A tar stream of the contents, each once, named by sha256."""
    return await _stream(request, name, parcels.brought)


@router.get("/runs/{name}/files/{kind}", responses=gives(_LISTING, 404, *OUTSIDE))
async def files(request: Request, name: str, kind: Kind) -> Response:
    """The outputs alone, the files of the newest checkpoint, or those that the script left elsewhere."""
    return await _list(request, name, _PARCELS[kind])


@router.get("/runs/{name}/files/{kind}/tar", responses=gives(bytes, 404, *OUTSIDE, media=_TAR), response_class=Response)
async def file_contents(request: Request, name: str, kind: Kind) -> Response:
    """A tar stream of their contents, each once, named by sha256."""
    return await _stream(request, name, _PARCELS[kind])


async def _list(request: Request, name: str, parcel_of: Callable[[Store, Run], Parcel]) -> Response:
    service = service_of(request)
    run = await service.ledger.find(name)
    found = await call(parcel_of, service.stores.of(run), run)
    attempt = run.attempt.number if run.attempt else 0
    return answer({"attempt": attempt, "entries": found.entries, "complete": run.state.ended})


async def _stream(request: Request, name: str, parcel_of: Callable[[Store, Run], Parcel]) -> Response:
    service = service_of(request)
    run = await service.ledger.find(name)
    store = service.stores.of(run)
    found = await call(parcel_of, store, run)
    contents = open_in_order(store, list(found.contents.values()))
    items = ((sha256, size, partial(next, contents)) for sha256, (_, size) in found.contents.items())
    return StreamingResponse(blob_stream(items), media_type=_TAR)

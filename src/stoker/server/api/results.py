"""Results of a run: its metrics, outputs and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from stoker.errors import Malformed, Missing
from stoker.model import untrusted, wire
from stoker.model.run.run import Run
from stoker.model.snapshot import CheckpointSet, Entry
from stoker.model.workspace import layout
from stoker.server.api.answers import MOST_COUNTED, OUTSIDE, answer, gives, service_of
from stoker.server.results import figures, parcels
from stoker.server.results.figures import lines
from stoker.server.results.parcels import Parcel
from stoker.server.rounds.outside import call
from stoker.stores import Store
from stoker.stores.transfer.reader import open_in_order
from stoker.stores.trees.blobstream import blob_stream

metric_router = APIRouter(tags=["metrics"])

MOST_LINES = 50_000  # in one answer, points or not
_ANSWER_BYTES = 16 << 20  # likewise, as the node wrote them


@dataclass(frozen=True, slots=True)
class Page:
    """Pass `next` as `after` to get what follows; `more`: there is something now. `unreadable` are lines that no agent
    writes."""

    points: list[dict[str, Any]] = field(default_factory=list)
    next: int = 0
    more: bool = False
    unreadable: int = 0


@metric_router.get("/runs/{name}/metrics", responses=gives(Page, 404, *OUTSIDE))
async def points(request: Request, name: str, after: int = Query(0, ge=0, le=MOST_COUNTED)) -> Response:
    """The points after the first `after` lines, as many as fit in one response. Pass `next` to get only newer ones;
    `more` says that there are some, and `unreadable` how many lines are not points."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer(await call(_page, await service.stores.reach(run.store), run, after, service.clock.now()))


def last_step(store: Store, run_id: str, number: int, now: datetime) -> float | None:
    """The last step that an attempt reported. None: it reported none."""
    last = None
    for point in figures.points(store, layout.metrics(run_id, number), now):
        last = last if point.step is None else point.step
    return last


def _page(store: Store, run: Run, after: int, now: datetime) -> Page:
    page, size = Page(next=after), 0
    for count, (attempt, line) in enumerate(_lines(store, run), 1):
        if count <= after:
            continue
        size += len(line)
        if page.next - after >= MOST_LINES or (page.points and size > _ANSWER_BYTES):
            return replace(page, more=bool(page.points))  # after a page without points there are hardly any
        if point := figures.measured(line, now):
            page.points.append({"attempt": attempt, **wire.to_plain(point)})
        page = replace(page, next=count, unreadable=page.unreadable + (point is None))
    return page


def _lines(store: Store, run: Run) -> Iterator[tuple[int, bytes]]:
    """Always in the same order, with later points at the end: the other nodes of a gang follow once it has ended."""
    for attempt in run.attempts:
        for member in attempt.members if attempt.state.over else attempt.members[:1]:
            for line in lines(store, layout.metrics(run.id, attempt.number, member.node), figures.FILE_BYTES):
                yield attempt.number, line


router = APIRouter(tags=["results"])


class ResultKind(StrEnum):
    """Which files of a run."""

    OUTPUTS = "outputs"  # without the checkpoint that comes with them
    CHECKPOINT = "checkpoint"
    STRAY = "stray"


_LISTING = {"attempt": int, "entries": tuple[Entry, ...], "complete": bool}
_TAR = "application/x-tar"
_PARCELS = {
    ResultKind.OUTPUTS: parcels.outputs,
    ResultKind.CHECKPOINT: parcels.checkpoint,
    ResultKind.STRAY: parcels.stray,
}


@router.get("/runs/{name}/outputs", responses=gives(_LISTING, 404, *OUTSIDE))
async def listing(request: Request, name: str) -> Response:
    """The newest attempt's output files, and for a run that has ended its newest checkpoint unless that is large.
    `complete` is true once they will not change any more."""
    return await _list(request, name, parcels.brought)


@router.get("/runs/{name}/outputs.tar", responses=gives(bytes, 404, *OUTSIDE, media=_TAR), response_class=Response)
async def contents(request: Request, name: str) -> Response:
    """A tar stream of the contents, each once, named by sha256."""
    return await _stream(request, name, parcels.brought)


@router.get("/runs/{name}/files/{kind}", responses=gives(_LISTING, 404, *OUTSIDE))
async def files(request: Request, name: str, kind: ResultKind) -> Response:
    """The outputs alone, the files of the newest checkpoint, or files that the script wrote elsewhere."""
    return await _list(request, name, _PARCELS[kind])


@router.get("/runs/{name}/files/{kind}/tar", responses=gives(bytes, 404, *OUTSIDE, media=_TAR), response_class=Response)
async def file_contents(request: Request, name: str, kind: ResultKind) -> Response:
    """A tar stream of their contents, each once, named by sha256."""
    return await _stream(request, name, _PARCELS[kind])


async def _list(request: Request, name: str, parcel_of: Callable[[Store, Run], Parcel]) -> Response:
    service = service_of(request)
    run = await service.ledger.find(name)
    found = await call(parcel_of, await service.stores.reach(run.store), run)
    attempt = run.attempt.number if run.attempt else 0
    return answer({"attempt": attempt, "entries": found.entries, "complete": run.state.ended})


async def _stream(request: Request, name: str, parcel_of: Callable[[Store, Run], Parcel]) -> Response:
    service = service_of(request)
    run = await service.ledger.find(name)
    store = await service.stores.reach(run.store)
    found = await call(parcel_of, store, run)
    contents = open_in_order(store, list(found.contents.values()))
    items = ((sha256, size, partial(next, contents)) for sha256, (_, size) in found.contents.items())
    return StreamingResponse(blob_stream(items), media_type=_TAR)


MOST_SETS = 100_000


_KEPT = {"sets": tuple[Mapping[str, int], ...], "newest": CheckpointSet | None}


@router.get("/runs/{name}/checkpoints", responses=gives(_KEPT, 404, *OUTSIDE))
async def checkpoint_sets(request: Request, name: str) -> Response:
    """The position of every checkpoint, oldest first, and the newest of them with its files; null if there is none."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer(await call(_kept, await service.stores.reach(run.store), run.id, service.clock.now()))


def _kept(store: Store, run_id: str, now: datetime) -> dict[str, object]:
    found = []
    for stored in islice(store.list(layout.checkpoint_sets(run_id).rstrip("/")), MOST_SETS):
        with suppress(ValueError):  # other keys are ignored
            found.append(layout.checkpoint_position(stored.key))
    found.sort()
    newest = None
    if found:
        with suppress(Missing, Malformed):  # replaced meanwhile, or damaged
            key = layout.checkpoint_set(run_id, *found[-1])
            newest = untrusted.fetch(CheckpointSet, store, key, untrusted.MANIFEST_BYTES, now)
    return {"sets": [{"attempt": attempt, "number": number} for attempt, number in found], "newest": newest}

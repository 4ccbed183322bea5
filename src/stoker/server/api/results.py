"""Results of a run: its metrics, outputs, checkpoints and logs: every byte, from any offset, live if requested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import count, islice
from typing import Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from stoker.errors import Malformed, Missing, StoreFailed, Unanswered
from stoker.model import untrusted, wire
from stoker.model.run.run import Attempt, Run
from stoker.model.snapshot import CheckpointSet, Entry
from stoker.model.workspace import layout
from stoker.server.api.answers import BYTES, MOST_BYTES, MOST_COUNTED, OUTSIDE, answer, gives, service_of
from stoker.server.results import figures, parcels
from stoker.server.results.figures import MOST_UNREADABLE, lines
from stoker.server.results.parcels import Parcel
from stoker.server.rounds.outside import call
from stoker.server.service import Service
from stoker.stores import NEAR, Store, pacing
from stoker.stores.transfer.disk import open_in_order
from stoker.stores.trees.blobstream import blob_stream

metric_router = APIRouter(tags=["metrics"])

MOST_LINES = 50_000  # in one answer, points or not
_ANSWER_BYTES = 16 << 20  # likewise, as the node wrote them


_TAR = "application/x-tar"
MOST_SETS = 100_000
PIECE_BYTES = 1 << 20
_AWAY_S = 5.0
_LAST_WORDS_S = 3.0  # after a node was stopped without a final report, until its script's last output is stored
_TIMES_BYTES = 64 << 20
NOTED_WITHIN_S = 1.0  # of being written, the time of a line is noted


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
    for number, (attempt, line) in enumerate(_lines(store, run), 1):
        if number <= after:
            continue
        size += len(line)
        if page.next - after >= MOST_LINES or (page.points and size > _ANSWER_BYTES):
            return replace(page, more=bool(page.points))  # after a page without points there are hardly any
        if point := figures.measured(line, now):
            page.points.append({"attempt": attempt, **wire.to_plain(point)})
        page = replace(page, next=number, unreadable=page.unreadable + (point is None))
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


log_router = APIRouter(tags=["logs"])


_LOG = {"attempt": int, "rank": int, "bytes": int, "complete": bool}


@log_router.get("/runs/{name}/logs", responses=gives({"logs": [_LOG]}, 404, *OUTSIDE))
async def available(request: Request, name: str) -> Response:
    """The existing logs, and their current sizes."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer({"logs": await call(_logs, await service.stores.reach(run.store), run)})


@log_router.get(
    "/runs/{name}/logs/{attempt}/{rank}", responses=gives(bytes, 404, *OUTSIDE, media=BYTES), response_class=Response
)
async def read(
    request: Request,
    name: str,
    attempt: int = Path(ge=1, le=MOST_COUNTED),
    rank: int = Path(ge=0, le=MOST_COUNTED),
    offset: int = Query(0, ge=0, le=MOST_BYTES),
    follow: bool = False,
    since: float = 0.0,
) -> Response:
    """Raw bytes from `offset`, or from the first that is not older than `since` (unix seconds). With `follow` the
    response ends when the attempt has ended and all of its log was sent; any other end is a broken connection."""
    service = service_of(request)
    run = await service.ledger.find(name)
    store = await service.stores.reach(run.store)
    if not follow or run.state.ended:  # an unavailable store can be reported only before a response starts
        await call(_piece, store, layout.log(run.id, attempt, rank), offset, 1)
    if since:
        offset = max(offset, await call(_offset_at, store, run.id, attempt, rank, since))
    pieces = _follow(service, run, attempt, rank, offset) if follow else _read(store, run.id, attempt, rank, offset)
    return StreamingResponse(pieces, media_type="application/octet-stream", headers={"Stoker-Offset": str(offset)})


async def _read(store: Store, run_id: str, attempt: int, rank: int, offset: int) -> AsyncIterator[bytes]:
    while piece := await call(_piece, store, layout.log(run_id, attempt, rank), offset):
        offset += len(piece)
        yield piece
        if len(piece) < PIECE_BYTES:
            return


async def _follow(service: Service, run: Run, number: int, rank: int, offset: int) -> AsyncIterator[bytes]:
    store = await service.stores.reach(run.store)
    pace = pacing(store)
    pause_s, away_since = pace.eager_s, 0.0
    while True:
        # Checked before reading: the log of an attempt that has ended is complete.
        over = _over(run, number) and _said_all(_attempt(run, number), service.clock.now())
        try:
            async for piece in _read(store, run.id, number, rank, offset):
                offset += len(piece)
                pause_s = pace.eager_s
                yield piece
            away_since = 0.0
        except (StoreFailed, Unanswered):  # once it is available again, the rest follows
            over, pause_s, now = False, pace.lazy_s, service.clock.steady()
            away_since = away_since or now
            if run.state.ended and now - away_since > _AWAY_S:
                return  # the next request gets the reason
        if over:
            return
        run = await _next(service, run, pause_s)
        pause_s = min(pause_s * 1.2, pace.lazy_s)


async def _next(service: Service, run: Run, pause_s: float) -> Run:
    """The run after a pause, or as soon as it ends."""
    if pause_s <= NEAR.lazy_s:
        await asyncio.sleep(pause_s)
        return await service.ledger.find(run.name)
    return await service.ledger.wait(run.name, run.version, pause_s)


def _over(run: Run, number: int) -> bool:
    """Nothing more will be written to the logs of this attempt."""
    attempt = _attempt(run, number)
    if attempt is None:
        return run.state.ended
    return attempt.state.over


def _said_all(attempt: Attempt | None, now: datetime) -> bool:
    """A final report follows the last line; without one, lines may still arrive."""
    if attempt is None or attempt.outcome or not attempt.ended_at:
        return True
    return abs((now - attempt.ended_at).total_seconds()) > _LAST_WORDS_S


def _attempt(run: Run, number: int) -> Attempt | None:
    return next((attempt for attempt in run.attempts if attempt.number == number), None)


def _piece(store: Store, key: str, offset: int, most: int = PIECE_BYTES) -> bytes:
    try:
        return store.get(key, offset, most)
    except Missing:
        return b""


def _logs(store: Store, run: Run) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for attempt in run.attempts:
        for rank, size in sorted(_sizes(store, run.id, attempt.number).items()):
            row = {"attempt": attempt.number, "rank": rank, "bytes": size}
            found.append({**row, "complete": _over(run, attempt.number)})
    return found


def _sizes(store: Store, run_id: str, number: int) -> dict[int, int]:
    """By rank. If an object of a node breaks the listing, each log is requested by name."""
    sizes: dict[int, int] = {}
    try:
        for one in store.list(layout.attempt(run_id, number) + "logs"):
            rank = layout.log_rank(one.key)
            if rank is not None and one.key == layout.log(run_id, number, rank):
                sizes[rank] = one.size_bytes
    except StoreFailed:
        return dict(enumerate(_measured(store, run_id, number)))
    return sizes


def _measured(store: Store, run_id: str, number: int) -> Iterator[int]:
    """The size of each rank's log, from the first to the last that has one. Raises StoreFailed."""
    for rank in count():
        size, key = 0, layout.log(run_id, number, rank)
        while piece := _piece(store, key, size):
            size += len(piece)
        if not size:
            return
        yield size


def _offset_at(store: Store, run_id: str, attempt: int, rank: int, since: float) -> int:
    """The last recorded offset that is not newer than `since`; a little too much is better than a line too few. Times
    are recorded whenever a log grows, so what follows the last record is hardly newer."""
    offset, noted_at, unreadable = 0, 0.0, 0
    for line in lines(store, layout.log_times(run_id, attempt, rank), _TIMES_BYTES):
        noted = _noted(line)
        if noted is None:
            unreadable += 1
            if unreadable >= MOST_UNREADABLE:
                break
            continue
        if noted[1] > since:
            break
        offset, noted_at = noted
    else:
        if noted_at and since > noted_at + NOTED_WITHIN_S + 4 * pacing(store).write_s:
            return _size(store, layout.log(run_id, attempt, rank))
    return offset


def _noted(line: bytes) -> tuple[int, float] | None:
    """An offset and its time; None for a line that no agent writes."""
    try:
        found = untrusted.parsed(line)
    except Malformed:
        return None
    if type(found) is not list or len(found) != 2 or not all(type(one) in (int, float) for one in found):
        return None
    return (int(found[0]), float(found[1])) if all(0 <= one <= untrusted.LARGEST for one in found) else None


def _size(store: Store, key: str) -> int:
    return next((one.size_bytes for one in store.list(key.rpartition("/")[0]) if one.key == key), 0)

"""Logs: every byte of a rank's output, from any offset, live if requested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from itertools import count

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from stoker.errors import Malformed, Missing, StoreFailed, Unanswered
from stoker.model import untrusted
from stoker.model.run.run import Attempt, Run
from stoker.model.workspace import layout
from stoker.server.api.answers import BYTES, MOST_BYTES, MOST_COUNTED, OUTSIDE, answer, gives, service_of
from stoker.server.results.figures import MOST_UNREADABLE, lines
from stoker.server.rounds.outside import call
from stoker.server.service import Service
from stoker.stores import NEAR, Store, pacing

router = APIRouter(tags=["logs"])

PIECE_BYTES = 1 << 20
_AWAY_S = 5.0
_LAST_WORDS_S = 3.0  # after a node was stopped without a final report, until its script's last output is stored
_TIMES_BYTES = 64 << 20
NOTED_WITHIN_S = 1.0  # of being written, the time of a line is noted


_LOG = {"attempt": int, "rank": int, "bytes": int, "complete": bool}


@router.get("/runs/{name}/logs", responses=gives({"logs": [_LOG]}, 404, *OUTSIDE))
async def available(request: Request, name: str) -> Response:
    """The existing logs, and their current sizes."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer({"logs": await call(_list, await service.stores.reach(run.store), run)})


@router.get(
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
    """The run after a pause, which its end cuts short."""
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


def _list(store: Store, run: Run) -> list[dict[str, object]]:
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

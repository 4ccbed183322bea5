"""Logs: every byte a rank wrote, from any offset, live if wanted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from stoker.errors import Missing, StoreUnavailable
from stoker.model import layout
from stoker.model.run import Attempt, Run
from stoker.server.api.shape import answer, service_of
from stoker.server.outside import call
from stoker.server.service import Service
from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing

router = APIRouter(tags=["logs"])

PIECE_BYTES = 1 << 20
_AWAY_S = 5.0
NOTED_WITHIN_S = 1.0  # of being written, the time of a line is noted


@router.get("/runs/{name}/logs")
async def available(request: Request, name: str) -> Response:
    """Which logs there are, and how long they are by now."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer({"logs": await call(_list, service.stores.of(run), run)})


@router.get("/runs/{name}/logs/{attempt}/{rank}")
async def read(
    request: Request, name: str, attempt: int, rank: int, offset: int = 0, follow: bool = False, since: float = 0.0
) -> Response:
    """Raw bytes from `offset`, or from the first that is not older than `since` (unix seconds). With `follow` the
    answer ends when the attempt has ended and all of its log was sent; one that ends otherwise was cut off."""
    service = service_of(request)
    run = await service.ledger.find(name)
    store = service.stores.of(run)
    if not follow or run.state.ended:  # a store that is away can be told of only before an answer begins
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
    store = service.stores.of(run)
    pace = pacing(store)
    pause_s, away_since = pace.eager_s, 0.0
    while True:
        # Asked before reading: what an attempt that is over has written is all there.
        over = _over(run, number)
        try:
            async for piece in _read(store, run.id, number, rank, offset):
                offset += len(piece)
                pause_s = pace.eager_s
                yield piece
            away_since = 0.0
        except StoreUnavailable:  # it will be back, and then the rest comes
            over, pause_s, now = False, pace.lazy_s, service.clock.steady()
            away_since = away_since or now
            if run.state.ended and now - away_since > _AWAY_S:
                return  # whoever asks for the rest is told why there is none
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
        top = layout.attempt(run.id, attempt.number) + "logs"
        logs = {int(one.key.rsplit("/", 1)[-1][:-4]): one for one in store.list(top) if one.key.endswith(".log")}
        for rank in sorted(logs):
            row = {"attempt": attempt.number, "rank": rank, "bytes": logs[rank].size_bytes}
            found.append({**row, "complete": _over(run, attempt.number)})
    return found


def _offset_at(store: Store, run_id: str, attempt: int, rank: int, since: float) -> int:
    """The last noted offset that is not newer than `since`; a little too much is better than a line too few. Times are
    noted whenever a log grows, so what is behind the last note is hardly newer than it."""
    try:
        lines = store.get(layout.log_times(run_id, attempt, rank)).splitlines()
    except Missing:
        return 0
    offset, noted_at = 0, 0.0
    for at, seconds in (json.loads(line) for line in lines if line.endswith(b"]")):
        if seconds > since:
            break
        offset, noted_at = at, seconds
    else:
        if since > noted_at + NOTED_WITHIN_S + 4 * pacing(store).write_s:
            return _size(store, layout.log(run_id, attempt, rank))
    return int(offset)


def _size(store: Store, key: str) -> int:
    return next((one.size_bytes for one in store.list(key.rpartition("/")[0]) if one.key == key), 0)

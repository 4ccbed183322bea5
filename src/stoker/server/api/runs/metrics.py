"""Metrics: every point a run reported, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Query, Request, Response

from stoker.model import wire
from stoker.model.run.run import Run
from stoker.model.workspace import layout
from stoker.server.api.http.shape import MOST_COUNTED, OUTSIDE, answer, gives, service_of
from stoker.server.results import points as stored
from stoker.server.results.lines import lines
from stoker.server.rounds.outside import call
from stoker.stores import Store

router = APIRouter(tags=["metrics"])

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


@router.get("/runs/{name}/metrics", responses=gives(Page, 404, *OUTSIDE))
async def points(request: Request, name: str, after: int = Query(0, ge=0, le=MOST_COUNTED)) -> Response:
    """The points after the first `after` lines, as many as fit in one response. Pass `next` to get only newer ones;
    `more` says that there are some, and `unreadable` how many lines are not points."""
    service = service_of(request)
    run = await service.ledger.find(name)
    return answer(await call(_page, await service.stores.reach(run.store), run, after, service.clock.now()))


def last_step(store: Store, run_id: str, number: int, now: datetime) -> float | None:
    """The last step that an attempt reported. None: it reported none."""
    last = None
    for point in stored.points(store, layout.metrics(run_id, number), now):
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
        if point := stored.measured(line, now):
            page.points.append({"attempt": attempt, **wire.to_plain(point)})
        page = replace(page, next=count, unreadable=page.unreadable + (point is None))
    return page


def _lines(store: Store, run: Run) -> Iterator[tuple[int, bytes]]:
    """Always in the same order, with later points at the end: the other nodes of a gang follow once it has ended."""
    for attempt in run.attempts:
        for member in attempt.members if attempt.state.over else attempt.members[:1]:
            for line in lines(store, layout.metrics(run.id, attempt.number, member.node), stored.FILE_BYTES):
                yield attempt.number, line

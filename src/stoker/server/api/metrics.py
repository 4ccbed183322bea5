"""Metrics: every point a run reported, in order."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request, Response

from stoker.errors import Missing
from stoker.model import layout
from stoker.model.run import Run
from stoker.server.api.shape import answer, service_of
from stoker.server.outside import call
from stoker.stores import Store

router = APIRouter(tags=["metrics"])


@router.get("/runs/{name}/metrics")
async def points(request: Request, name: str, after: int = 0) -> Response:
    """All points behind the first `after`; `next` is what to pass to get only newer ones."""
    service = service_of(request)
    run = await service.ledger.find(name)
    found = await call(_points, service.stores.of(run), run)
    return answer({"points": found[after:], "next": len(found)})


def last_step(store: Store, run_id: str, number: int) -> float | None:
    """The last step that an attempt reported. None: it reported none."""
    steps = [point["step"] for point in _of_attempt(store, run_id, number) if point.get("step") is not None]
    return steps[-1] if steps else None


def _points(store: Store, run: Run) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for attempt in run.attempts:
        found += _of_attempt(store, run.id, attempt.number)
    return found


def _of_attempt(store: Store, run_id: str, number: int) -> list[dict[str, Any]]:
    try:
        lines = store.get(layout.metrics(run_id, number)).splitlines(keepends=True)
    except Missing:
        return []
    return [{"attempt": number, **json.loads(line)} for line in lines if line.endswith(b"\n")]

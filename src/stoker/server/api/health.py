"""The server itself: is it there, and please stop."""

from __future__ import annotations

import os
import signal

from fastapi import APIRouter, Request, Response

from stoker import __version__
from stoker.server.api.shape import answer, service_of

router = APIRouter(tags=["server"])


@router.get("/health")
async def health(request: Request) -> Response:
    service = service_of(request)
    facts = {
        "version": __version__,
        "pid": os.getpid(),
        "home": str(service.settings.home.root),
        "started_at": service.started_at,
        "open_runs": len(service.ledger.open),
        "notices": service.notices,
    }
    return answer(facts)


@router.post("/stop")
async def stop() -> Response:
    """The server ends once this answer is out; agents go on, and the next server catches up."""
    os.kill(os.getpid(), signal.SIGTERM)
    return answer({"stopping": True})

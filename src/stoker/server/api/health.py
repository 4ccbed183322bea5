"""The server itself: is it there, and please stop."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stoker import __version__
from stoker.model.proof import LEAST_NONCE, MOST_NONCE, proof
from stoker.server.api.shape import answer, gives, service_of

router = APIRouter(tags=["server"])


_HEALTH = {
    "version": str,
    "pid": int,
    "home": str,
    "started_at": datetime,
    "open_runs": int,
    "notices": tuple[str, ...],
}


@router.get("/proof", responses=gives({"proof": str}))
async def show_proof(
    request: Request, nonce: Annotated[str, Query(min_length=LEAST_NONCE, max_length=MOST_NONCE, pattern="^[0-9a-f]+$")]
) -> Response:
    """That this server knows the token, for a client that will not send it to anybody else. Needs no token."""
    return answer({"proof": proof(service_of(request).token, nonce)})


@router.get("/health", responses=gives(_HEALTH))
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


@router.post("/stop", responses=gives({"stopping": bool}))
async def stop() -> Response:
    """The server ends once this answer is out; agents go on, and the next server catches up."""
    os.kill(os.getpid(), signal.SIGTERM)
    return answer({"stopping": True})

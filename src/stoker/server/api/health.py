"""The server itself: its status, and its stop."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stoker import __version__
from stoker.errors import Conflict
from stoker.model.workspace.home import LEAST_NONCE, MOST_NONCE, proof
from stoker.server.api.http.shape import answer, gives, service_of
from stoker.server.records import recorder
from stoker.server.rounds.outside import call
from stoker.server.stores import accesses

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
    """Proof that this server knows the token, for a client that sends it to no other. Requires no token."""
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


@router.post("/credentials/forget", responses=gives({"forgotten": int}, 409))
async def forget_credentials(request: Request) -> Response:
    """Removes every credential of this server, for the uninstallation: also those in the system's keyring, where they
    would be hard to find later. Refused while a run is active."""
    service = service_of(request)
    if open_runs := [run.name for run in service.ledger.open if not run.state.ended]:
        raise Conflict(f"`{open_runs[0]}` is active", hint=f"cancel it first: `stoker cancel {open_runs[0]}`")
    names = [recorder.NAME, accesses.SEAL, *(f"store {store.name}" for store in service.stores.all)]
    for name in names:
        await call(service.keychain.forget, name)
    return answer({"forgotten": len(names)})


@router.post("/stop", responses=gives({"stopping": bool}))
async def stop() -> Response:
    """The server ends after this response; agents continue, and the next server catches up."""
    os.kill(os.getpid(), signal.SIGTERM)
    return answer({"stopping": True})

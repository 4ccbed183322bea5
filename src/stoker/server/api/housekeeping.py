"""The server itself: its status and its stop; the sizes of runs, and deleting several at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stoker import __version__
from stoker.errors import BadInput, Conflict
from stoker.model.cause import Cause
from stoker.model.run.run import PruneRule, Run, Sizes, Spared
from stoker.model.workspace.home import LEAST_NONCE, MOST_NONCE, proof
from stoker.server.api.answers import OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import body
from stoker.server.records import copies
from stoker.server.rounds.outside import call
from stoker.server.stores import accesses

server_router = APIRouter(tags=["server"])


_HEALTH = {
    "version": str,
    "pid": int,
    "home": str,
    "started_at": datetime,
    "open_runs": int,
    "notices": tuple[str, ...],
}


@server_router.get("/proof", responses=gives({"proof": str}))
async def show_proof(
    request: Request, nonce: Annotated[str, Query(min_length=LEAST_NONCE, max_length=MOST_NONCE, pattern="^[0-9a-f]+$")]
) -> Response:
    """Proof that this server knows the token, for a client that sends it to no other. Requires no token."""
    return answer({"proof": proof(service_of(request).token, nonce)})


@server_router.get("/health", responses=gives(_HEALTH))
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


@server_router.post("/credentials/forget", responses=gives({"forgotten": int}, 409))
async def forget_credentials(request: Request) -> Response:
    """Removes every credential of this server, for the uninstallation: also those in the system's keyring, where they
    would be hard to find later. Refused while a run is active."""
    service = service_of(request)
    if open_runs := [run.name for run in service.ledger.open if not run.state.ended]:
        raise Conflict(
            f"`{open_runs[0]}` is active",
            hint=f"cancel it first: `stoker cancel {open_runs[0]}`",
            cause=Cause.RUN_ACTIVE,
        )
    names = [copies.NAME, accesses.SEAL, *(f"store {store.name}" for store in service.stores.all)]
    for name in names:
        await call(service.keychain.forget, name)
    return answer({"forgotten": len(names)})


@server_router.post("/stop", responses=gives({"stopping": bool}))
async def stop() -> Response:
    """The server ends after this response; agents continue, and the next server catches up."""
    os.kill(os.getpid(), signal.SIGTERM)
    return answer({"stopping": True})


router = APIRouter(tags=["housekeeping"])

MOST_RUNS = 10_000


@dataclass(frozen=True, slots=True)
class Named:
    """Runs by their names."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleChange:
    """`rule` applies from now on; null: none does."""

    rule: PruneRule | None = None


_REMOVED = {"removed": tuple[str, ...], "pending": Mapping[str, str]}
_PRUNABLE = {"runs": tuple[Run, ...], "spared": tuple[Spared, ...]}


@router.post("/removals", openapi_extra=takes(Named), responses=gives(_REMOVED, 404, *OUTSIDE))
async def remove(request: Request) -> Response:
    """Deletes ended runs, all of them or none. `pending` names those with files still in a store, and why: the server
    keeps trying."""
    named = _checked(await body(request, Named))
    pending = await service_of(request).removals.remove(named)
    return answer({"removed": named, "pending": pending})


@router.post("/sizes", openapi_extra=takes(Named), responses=gives(Sizes, 404, *OUTSIDE))
async def sizes(request: Request) -> Response:
    """The size of these runs in their stores and on the server's computer. Changes nothing."""
    service = service_of(request)
    runs = [await service.ledger.find(name) for name in _checked(await body(request, Named))]
    return answer(await call(service.weighing.weigh, runs))


@router.post("/prunable", openapi_extra=takes(PruneRule), responses=gives(_PRUNABLE))
async def prunable(request: Request) -> Response:
    """Which runs this rule would delete, and which stay although they are old. Deletes nothing."""
    gone, spared = await service_of(request).housekeeping.prunable(_sensible(await body(request, PruneRule)))
    return answer({"runs": gone, "spared": spared})


@router.get("/prune-rule", responses=gives({"rule": PruneRule | None}))
async def show_rule(request: Request) -> Response:
    """The rule by which the server deletes old runs every day; null: none."""
    return answer({"rule": await call(lambda: service_of(request).housekeeping.rule)})


@router.post("/prune-rule", openapi_extra=takes(RuleChange), responses=gives({"rule": PruneRule | None}))
async def set_rule(request: Request) -> Response:
    """Sets that rule, or removes it."""
    rule = (await body(request, RuleChange)).rule
    await call(service_of(request).housekeeping.keep_rule, _sensible(rule) if rule else None)
    return answer({"rule": rule})


def _checked(named: Named) -> list[str]:
    if len(named.runs) > MOST_RUNS:
        raise BadInput(f"runs: found {len(named.runs)} names, expected at most {MOST_RUNS}")
    return list(dict.fromkeys(named.runs))


def _sensible(rule: PruneRule) -> PruneRule:
    if not 0 <= rule.older_than_s < 1e10:
        raise BadInput(f"older_than_s: found {rule.older_than_s:g}, expected 0 or more seconds")
    return rule

"""Visits: a command on the node of a run, next to its script, and ssh access."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from stoker.engine.nodes import kept
from stoker.engine.nodes.leftovers import claimed
from stoker.errors import BadInput, Conflict, ProviderFailed
from stoker.model.node.orders import Visit
from stoker.model.node.visit import Entrance
from stoker.model.run.run import Attempt, Run
from stoker.providers import reachable
from stoker.server.api.http.reading import body
from stoker.server.api.http.shape import BYTES, OUTSIDE, answer, gives, service_of, takes
from stoker.server.rounds.outside import call
from stoker.server.visits.following import Following

router = APIRouter(tags=["visits"])


@dataclass(frozen=True, slots=True)
class VisitRequest:
    words: tuple[str, ...]


_FRAMES = gives(bytes, 404, *OUTSIDE, media=BYTES)


@router.post("/runs/{name}/visits", openapi_extra=takes(VisitRequest), responses=_FRAMES, response_class=Response)
async def visit(request: Request, name: str) -> Response:
    """Runs a command where the script runs. The response is its output, as it comes, in frames: a letter (`o`, `e`,
    `n`, `x`), four bytes of length, and so many bytes of stdout, stderr, a note, or the end as JSON. A disconnect ends
    the command; the header `Stoker-Visit` names it."""
    service = service_of(request)
    words = (await body(request, VisitRequest)).words
    if not words:
        raise BadInput("no command given", hint=f"stoker exec {name} -- nvidia-smi")
    run = await service.ledger.find(name)
    asked = Visit(secrets.token_hex(8), words)
    frames = Following(service, await service.stores.reach(run.store), run, _attempt(run), asked).frames()
    packed = (frame.packed() async for frame in frames)
    return StreamingResponse(packed, media_type=BYTES, headers={"Stoker-Visit": asked.id})


@router.delete("/runs/{name}/visits/{id}", responses=gives({"ended": str}, 404))
async def end(request: Request, name: str, id: str) -> Response:
    """Ends the command as Ctrl-C would. May be repeated."""
    service = service_of(request)
    run = await service.ledger.find(name)
    for attempt in run.attempts:
        service.visits.end(attempt.key, id)
    return answer({"ended": id})


@router.get("/runs/{name}/entrance", responses=gives({"entrance": Entrance, "key": str}, 404, *OUTSIDE))
async def entrance(request: Request, name: str) -> Response:
    """How to open a terminal on the node of a run. If that is not supported, the error says what to set."""
    service = service_of(request)
    run = await service.ledger.find(name)
    provider, attempt = reachable(service.providers[run.job.on]), _attempt(run)
    if provider is None:
        raise Conflict(f"provider `{run.job.on}` does not support ssh", hint=f"stoker exec {name} -- COMMAND")
    return answer({"entrance": await call(provider.entrance, attempt.key), "key": attempt.key})


@router.post("/runs/{name}/release", responses=gives(Run, 404, *OUTSIDE))
async def release(request: Request, name: str) -> Response:
    """Releases the node that was kept after a failed run."""
    service = service_of(request)
    now = service.clock.now()
    run = await service.ledger.change(name, lambda seen: kept.release(seen, now))
    if run.attempt:
        with suppress(ProviderFailed):  # the reconciler retries
            await call(service.providers[run.job.on].stop, run.attempt.key)
    service.reconciler.wake()
    return answer(run)


def _attempt(run: Run) -> Attempt:
    if run.attempt is None or run.attempt.key not in claimed([run]):
        hint = f"keep the node if a run fails: stoker run --keep-failed 30m; see this run: stoker show {run.name}"
        raise Conflict(f"`{run.name}` has no node: it is {run.state}", hint=hint)
    return run.attempt

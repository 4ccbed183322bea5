"""Visits: a command on the node of a run, beside its script, and how a person gets in otherwise."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from stoker.engine import kept
from stoker.engine.sweeping import claimed
from stoker.errors import BadInput, Conflict, Missing, ProviderFailed, StokerError
from stoker.model import layout, wire
from stoker.model.entrance import Entrance
from stoker.model.frame import Frame, Kind
from stoker.model.orders import Visit, VisitEnd
from stoker.model.run import Attempt, Run
from stoker.providers import Reachable, reachable
from stoker.server.api.shape import answer, body, gives, service_of, takes
from stoker.server.outside import call, call_far
from stoker.server.service import Service
from stoker.stores import Store
from stoker.stores.pacing import NEAR, pacing

router = APIRouter(tags=["visits"])

PIECE_BYTES = 1 << 20
PATIENCE_S = 10.0  # for an agent to take a command on
ALIVE_EVERY_S = 15.0
NOT_RUN = 125  # clear of the command's own exit codes


@dataclass(frozen=True, slots=True)
class VisitRequest:
    words: tuple[str, ...]


@router.post("/runs/{name}/visits", openapi_extra=takes(VisitRequest))
async def visit(request: Request, name: str) -> Response:
    """Runs a command where the script runs. The answer is what it prints, as it comes, in frames: a letter (`o`, `e`,
    `n`, `x`), four bytes of length, and so many bytes of stdout, stderr, a note, or the end as JSON. Whoever hangs up
    ends the command; the header `Stoker-Visit` names it."""
    service = service_of(request)
    words = (await body(request, VisitRequest)).words
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise BadInput("a visit needs a command", hint=f"stoker exec {name} -- nvidia-smi")
    run = await service.ledger.find(name)
    asked = Visit(secrets.token_hex(8), words)
    frames = Following(service, run, _attempt(run), asked).frames()
    packed = (frame.packed() async for frame in frames)
    return StreamingResponse(packed, media_type="application/octet-stream", headers={"Stoker-Visit": asked.id})


@router.delete("/runs/{name}/visits/{id}")
async def end(request: Request, name: str, id: str) -> Response:
    """Ends the command as Ctrl-C would. Twice is fine."""
    service = service_of(request)
    run = await service.ledger.find(name)
    for attempt in run.attempts:
        service.visits.end(attempt.key, id)
    return answer({"ended": id})


@router.get("/runs/{name}/entrance", responses=gives(Entrance))
async def entrance(request: Request, name: str) -> Response:
    """How a person gets to the node of a run with a terminal. Where nobody does, the error says what to set."""
    service = service_of(request)
    run = await service.ledger.find(name)
    provider, attempt = reachable(service.providers[run.job.on]), _attempt(run)
    if provider is None:
        raise Conflict(f"`{run.job.on}` lets nobody in to its nodes", hint=f"stoker exec {name} -- COMMAND")
    return answer({"entrance": await call(provider.entrance, attempt.key), "key": attempt.key})


@router.post("/runs/{name}/release", responses=gives(Run))
async def release(request: Request, name: str) -> Response:
    """The node of a failed run that was kept is given back now."""
    service = service_of(request)
    now = service.clock.now()
    run = await service.ledger.change(name, lambda seen: kept.release(seen, now))
    if run.attempt:
        with suppress(ProviderFailed):  # the sweep goes on trying
            await call(service.providers[run.job.on].stop, run.attempt.key)
    service.reconciler.wake()
    return answer(run)


def _attempt(run: Run) -> Attempt:
    if run.attempt is None or run.attempt.key not in claimed([run]):
        hint = (
            f"keep the node of a run that fails: stoker run --keep-failed 30m; look at this one: stoker show {run.name}"
        )
        raise Conflict(f"`{run.name}` has no node: it is {run.state}", hint=hint)
    return run.attempt


class Following:
    """One visit, from being wished for to its end."""

    def __init__(self, service: Service, run: Run, attempt: Attempt, visit: Visit) -> None:
        self._service = service
        self._run = run
        self._attempt = attempt
        self._visit = visit
        self._store = service.stores.of(run)
        self._pace = pacing(self._store)
        self._call = call if self._pace is NEAR else call_far
        self._base = layout.visit(run.id, attempt.number, visit.id)
        self._offsets = {"out": 0, "err": 0}
        self._begun = False

    async def frames(self) -> AsyncIterator[Frame]:
        visits, key = self._service.visits, self._attempt.key
        visits.begin(key, self._visit)
        try:
            async for frame in self._follow():
                yield frame
        finally:
            visits.end(key, self._visit.id)

    async def _follow(self) -> AsyncIterator[Frame]:
        clock, pause_s = self._service.clock, self._pace.eager_s
        asked_at = told_at = clock.steady()
        while True:
            over = await self._over()  # asked before reading: what was said before is all there
            end = await self._end()
            said = False
            async for frame in self._news():
                said = True
                yield frame
            if end:
                yield Frame(Kind.END, wire.dump(end))
                await self._tidy()
                return
            if over:
                yield Frame(Kind.END, wire.dump(VisitEnd(NOT_RUN, over)))
                return
            if not self._begun and clock.steady() - asked_at > PATIENCE_S:
                asked_at = clock.steady() + 5 * PATIENCE_S
                if provider := self._way_around():
                    async for frame in self._go_around(provider):
                        yield frame
                    return
                yield Frame(Kind.NOTE, f"{self._run.name} is starting: the command waits for its node".encode())
            if said:
                told_at, pause_s = clock.steady(), self._pace.eager_s
            elif clock.steady() - told_at > ALIVE_EVERY_S:
                told_at = clock.steady()
                yield Frame(Kind.NOTE)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, self._pace.lazy_s)

    async def _over(self) -> str:
        """Why nothing more will come; empty where it may."""
        run = await self._service.ledger.find(self._run.name)
        now = run.attempt
        if now is None or now.number != self._attempt.number or now.key not in claimed([run]):
            return f"the node of attempt {self._attempt.number} is gone: the run is {run.state}"
        return ""

    async def _news(self) -> AsyncIterator[Frame]:
        for name, kind in (("out", Kind.OUT), ("err", Kind.ERR)):
            while piece := await self._call(_piece, self._store, f"{self._base}{name}", self._offsets[name]):
                self._offsets[name] += len(piece)
                self._begun = True
                yield Frame(kind, piece)

    async def _end(self) -> VisitEnd | None:
        if not self._begun:
            self._begun = bool(await self._call(_piece, self._store, f"{self._base}begun", 0))
        if not self._begun:
            return None
        text = await self._call(_piece, self._store, f"{self._base}end.json", 0)
        return wire.load(VisitEnd, text) if text else None

    def _way_around(self) -> Reachable | None:
        """For a node whose agent was there and is silent now. Before its first word it may just not be there yet."""
        heard = self._attempt.started_at or self._run.kept_until
        return reachable(self._service.providers[self._run.job.on]) if heard else None

    async def _go_around(self, provider: Reachable) -> AsyncIterator[Frame]:
        """Not to run it twice, the wish is taken back first, and the agent had its time to hear of that."""
        self._service.visits.end(self._attempt.key, self._visit.id)
        await asyncio.sleep(2 * self._pace.wishes_s)
        if await self._call(_piece, self._store, f"{self._base}begun", 0):
            yield Frame(Kind.END, wire.dump(VisitEnd(NOT_RUN, "its agent answered too late, and ended it: try again")))
            return
        note = f"the agent of {self._run.name} does not answer: going by its provider, which shows all at the end"
        yield Frame(Kind.NOTE, note.encode())
        work = asyncio.create_task(asyncio.to_thread(provider.command, self._attempt.key, self._visit.words))
        while not (await asyncio.wait({work}, timeout=ALIVE_EVERY_S))[0]:
            yield Frame(Kind.NOTE)
        try:
            said = work.result()
        except StokerError as error:
            yield Frame(Kind.END, wire.dump(VisitEnd(NOT_RUN, error.message)))
            return
        yield Frame(Kind.OUT, said.out)
        yield Frame(Kind.ERR, said.err)
        yield Frame(Kind.END, wire.dump(VisitEnd(said.exit_code)))

    async def _tidy(self) -> None:
        try:
            for name in ("out", "err", "begun", "end.json"):
                await self._call(self._store.delete, f"{self._base}{name}")
        except StokerError:  # it goes with the run
            return


def _piece(store: Store, key: str, offset: int) -> bytes:
    try:
        return store.get(key, offset, PIECE_BYTES)
    except Missing:
        return b""

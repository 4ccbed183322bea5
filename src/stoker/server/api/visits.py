"""Visits: a command on the node of a run, followed to its end, and ssh access."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse

from stoker.engine.nodes import nodes
from stoker.engine.nodes.nodes import claimed
from stoker.errors import BadInput, Conflict, Malformed, Missing, ProviderFailed, StokerError, StoreUnavailable
from stoker.model import untrusted, wire
from stoker.model.cause import Cause
from stoker.model.node import Entrance, Frame, FrameKind
from stoker.model.orders import Visit, VisitEnd
from stoker.model.run.run import Attempt, Member, Run
from stoker.model.workspace import layout
from stoker.providers import Reachable, reachable
from stoker.server.api.answers import BYTES, OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import body
from stoker.server.rounds.outside import call, call_far
from stoker.server.service import Service
from stoker.stores import NEAR, Store, pacing

PIECE_BYTES = 1 << 20
PATIENCE_S = 10.0  # for an agent to accept a command
ALIVE_EVERY_S = 15.0
NOT_RUN = 125  # an exit code that the command itself hardly uses


class Following:
    """One visit, from the request to its end."""

    def __init__(self, service: Service, store: Store, run: Run, attempt: Member, visit: Visit) -> None:
        """`attempt` is the node that is visited."""
        self._service = service
        self._run = run
        self._attempt = attempt
        self._visit = visit
        self._store = store
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
            over = await self._over()  # checked before reading: everything written before is then complete
            end, news, more = await self._look()
            for frame in news:
                yield frame
            if more:
                told_at, pause_s = clock.steady(), self._pace.eager_s
                continue
            if end:
                yield Frame(FrameKind.END, wire.dump(end))
                await self._tidy()
                return
            if over:
                yield Frame(FrameKind.END, wire.dump(VisitEnd(NOT_RUN, over)))
                return
            if not self._begun and clock.steady() - asked_at > PATIENCE_S:
                asked_at = clock.steady() + 5 * PATIENCE_S
                if provider := self._way_around():
                    async for frame in self._go_around(provider):
                        yield frame
                    return
                yield Frame(FrameKind.NOTE, f"{self._run.name} is starting: the command waits for its node".encode())
            if news:
                told_at, pause_s = clock.steady(), self._pace.eager_s
            elif clock.steady() - told_at > ALIVE_EVERY_S:
                told_at = clock.steady()
                yield Frame(FrameKind.NOTE)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, self._pace.lazy_s)

    async def _over(self) -> str:
        """Why no more output will come; empty where it may."""
        run = await self._service.ledger.find(self._run.name)
        now = run.attempt
        if now is None or now.number != self._attempt.number or now.key not in claimed([run]):
            return f"the node of attempt {self._attempt.number} is gone: the run is {run.state}"
        return ""

    async def _look(self) -> tuple[VisitEnd | None, list[Frame], bool]:
        """How it ended, if it has, the output since the last look, and whether more can be read at once: memory is
        bounded. Less, where the store is unavailable."""
        news: list[Frame] = []
        more = False
        try:
            end = await self._end()
            for name, kind in (("out", FrameKind.OUT), ("err", FrameKind.ERR)):
                if piece := await self._piece(name, self._offsets[name]):
                    self._offsets[name] += len(piece)
                    self._begun = True
                    news.append(Frame(kind, piece))
                more = more or len(piece) == PIECE_BYTES
        except StoreUnavailable:
            return None, news, False
        return end, news, more

    async def _end(self) -> VisitEnd | None:
        if not self._begun:
            self._begun = bool(await self._piece("begun"))
        if not self._begun:
            return None
        text = await self._piece("end.json")
        try:
            return untrusted.load(VisitEnd, text, self._service.clock.now()) if text else None
        except Malformed as error:
            return VisitEnd(NOT_RUN, f"could not read how the command ended: {error.message}")

    def _way_around(self) -> Reachable | None:
        """For a node whose agent has reported and is silent now. Before its first report it may just not be ready
        yet."""
        heard = self._attempt.started_at or self._run.kept_until
        return reachable(self._service.providers[self._run.job.on]) if heard else None

    async def _go_around(self, provider: Reachable) -> AsyncIterator[Frame]:
        """Withdraws the request first, so that it does not run twice; the agent had time to see that."""
        self._service.visits.end(self._attempt.key, self._visit.id)
        await asyncio.sleep(2 * self._pace.wishes_s)
        if await self._piece("begun"):
            yield Frame(
                FrameKind.END,
                wire.dump(VisitEnd(NOT_RUN, "its agent answered too late and ended the command: try again")),
            )
            return
        note = f"the agent of {self._run.name} does not answer: using its provider, which shows the output at the end"
        yield Frame(FrameKind.NOTE, note.encode())
        work = asyncio.create_task(asyncio.to_thread(provider.command, self._attempt.key, self._visit.words))
        while not (await asyncio.wait({work}, timeout=ALIVE_EVERY_S))[0]:
            yield Frame(FrameKind.NOTE)
        try:
            said = work.result()
        except StokerError as error:
            yield Frame(FrameKind.END, wire.dump(VisitEnd(NOT_RUN, error.message)))
            return
        yield Frame(FrameKind.OUT, said.out)
        yield Frame(FrameKind.ERR, said.err)
        yield Frame(FrameKind.END, wire.dump(VisitEnd(said.exit_code)))

    async def _tidy(self) -> None:
        try:
            for name in ("out", "err", "begun", "end.json"):
                await self._call(self._store.delete, f"{self._base}{name}")
        except StokerError:  # it is deleted with the run
            return

    async def _piece(self, name: str, offset: int = 0) -> bytes:
        try:
            return await self._call(self._store.get, f"{self._base}{name}", offset, PIECE_BYTES)
        except Missing:
            return b""


router = APIRouter(tags=["visits"])


@dataclass(frozen=True, slots=True)
class VisitRequest:
    words: tuple[str, ...] = ()
    node: int = 0  # its number in the gang
    stacks: bool = False  # instead of a command: the stacks of the ranks of the node, as JSON


_FRAMES = gives(bytes, 404, *OUTSIDE, media=BYTES)


@router.post("/runs/{name}/visits", openapi_extra=takes(VisitRequest), responses=_FRAMES, response_class=Response)
async def visit(request: Request, name: str) -> Response:
    """Runs a command where the script runs. The response is its output, as it comes, in frames: a letter (`o`, `e`,
    `n`, `x`), four bytes of length, and so many bytes of stdout, stderr, a note, or the end as JSON. A disconnect ends
    the command; the header `Stoker-Visit` names it."""
    service = service_of(request)
    wanted = await body(request, VisitRequest)
    if not wanted.words and not wanted.stacks:
        raise BadInput("no command given", hint=f"stoker exec {name} -- nvidia-smi", cause=Cause.NO_COMMAND)
    run = await service.ledger.find(name)
    asked = Visit(secrets.token_hex(8), () if wanted.stacks else wanted.words, wanted.stacks)
    member = _member(run, wanted.node)
    frames = Following(service, await service.stores.reach(run.store), run, member, asked).frames()
    packed = (frame.packed() async for frame in frames)
    return StreamingResponse(packed, media_type=BYTES, headers={"Stoker-Visit": asked.id})


@router.delete("/runs/{name}/visits/{id}", responses=gives({"ended": str}, 404))
async def end(request: Request, name: str, id: str) -> Response:
    """Ends the command as Ctrl-C would. May be repeated."""
    service = service_of(request)
    run = await service.ledger.find(name)
    for member in run.members:
        service.visits.end(member.key, id)
    return answer({"ended": id})


@router.get("/runs/{name}/entrance", responses=gives({"entrance": Entrance, "key": str}, 404, *OUTSIDE))
async def entrance(request: Request, name: str) -> Response:
    """How to open a terminal on the node of a run. If that is not supported, the error says what to set."""
    service = service_of(request)
    run = await service.ledger.find(name)
    provider, attempt = reachable(service.providers[run.job.on]), _attempt(run)
    if provider is None:
        raise Conflict(
            f"provider `{run.job.on}` does not support ssh", hint=f"stoker exec {name} -- COMMAND", cause=Cause.NO_SSH
        )
    return answer({"entrance": await call(provider.entrance, attempt.key), "key": attempt.key})


@router.post("/runs/{name}/release", responses=gives(Run, 404, *OUTSIDE))
async def release(request: Request, name: str) -> Response:
    """Releases the node that was kept after a failed run."""
    service = service_of(request)
    now = service.clock.now()
    run = await service.ledger.change(name, lambda seen: nodes.release(seen, now))
    if run.attempt:
        with suppress(ProviderFailed):  # the reconciler retries
            await call(service.providers[run.job.on].stop, run.attempt.key)
    service.reconciler.wake()
    return answer(run)


def _member(run: Run, node: int) -> Member:
    members = _attempt(run).members
    if not 0 <= node < len(members):
        known = "node 0" if len(members) == 1 else f"nodes 0 to {len(members) - 1}"
        raise BadInput(f"`{run.name}` has no node {node}", hint=f"it has {known}", cause=Cause.NO_SUCH_NODE)
    return members[node]


def _attempt(run: Run) -> Attempt:
    if run.attempt is None or run.attempt.key not in claimed([run]):
        hint = f"keep the node if a run fails: stoker run --keep-failed 30m; see this run: stoker show {run.name}"
        raise Conflict(f"`{run.name}` has no node: it is {run.state}", hint=hint, cause=Cause.NO_NODE)
    return run.attempt

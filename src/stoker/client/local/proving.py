"""A proof on the real cloud: a tiny run on the cheapest spot machine, evicted by the cloud itself, resumed and removed.

It is an ordinary run of an ordinary job, with a budget: whatever happens, it costs no more than that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from stoker.client.api.client import Client
from stoker.client.api.handle import Run
from stoker.client.api.leftovers import Nodes
from stoker.client.report.spelling import usd
from stoker.errors import StokerError
from stoker.model.job.job import Environment, Fallback, Job, Packages, Spot
from stoker.model.run.receipt import Receipt
from stoker.model.run.run import Attempt, AttemptState, Event, RunState
from stoker.model.workspace.finding import Finding, Verdict

Drill = Callable[[str], str]  # evicts the machine of a node, from the cloud's side, and tells what will restore it

NAME = "doctor"
BOOT_S, EVICTION_S, RESUME_S = 900.0, 2400.0, 1200.0  # Azure evicts within half an hour of being asked to
_TIME_LIMIT_S = 4500.0
_GONE_S = 600.0
_FIRST_STEPS, _LOOK_S = 3, 1.0

# Works until it has been interrupted once, then for a few steps more. It knows nothing of Stoker but its folders.
_SCRIPT = """\
import json, os, time
from pathlib import Path

place = Path(os.environ["STOKER_CHECKPOINTS"], "state.json")
step = json.loads(place.read_text())["step"] if place.exists() else 0
until = step + 5 if step else None
while until is None or step < until:
    time.sleep(1)
    step += 1
    part = place.with_suffix(".part")
    part.write_text(json.dumps({"step": step}))
    part.replace(place)
    print(json.dumps({"step": step, "alive": 1.0}), flush=True)
Path(os.environ["STOKER_OUTPUTS"], "steps.txt").write_text(str(step))
"""


def proof_job(cloud: str, spend: Decimal) -> Job:
    """With the machine's own Python: what an installation takes is not what is measured."""
    return Job(
        name=NAME,
        run="python3 heart.py",
        environment=Environment(packages=Packages.NONE),
        on=cloud,
        spot=Spot(fallback=Fallback.NONE),
        budget=spend,
        time_limit=_TIME_LIMIT_S,
    )


@dataclass
class Proof:
    """`tell` hears how far it is. `events` are the run's timeline, once it has ended."""

    client: Client
    cloud: str
    spend: Decimal
    drill: Drill
    tell: Callable[[str], None] = lambda _: None
    events: tuple[Event, ...] = ()

    def findings(self) -> Iterator[Finding]:
        """Each step as it is seen. Whatever happens, the run has ended and its machine is released at the end."""
        with tempfile.TemporaryDirectory(prefix="stoker-doctor-") as folder:
            Path(folder, "heart.py").write_text(_SCRIPT, encoding="utf-8")
            try:
                run = self.client.submit(proof_job(self.cloud, self.spend), folder, say=self.tell)
            except StokerError as error:
                yield Finding("machine", Verdict.FAIL, error.message, error.hint)
                return
            try:
                yield from self._story(run)
            finally:
                self._end(run)
            yield from self._account(run)

    def _story(self, run: Run) -> Iterator[Finding]:
        self.tell(f"{run.name}: waiting for a spot machine")
        first = self._until(run, _at_work, BOOT_S)
        if first is None:
            yield Finding("machine", Verdict.FAIL, _why(run, f"no machine was at work after {BOOT_S:.0f} s"))
            return
        yield _booted(first)
        try:
            restoring = self.drill(first.key)
        except StokerError as error:
            yield Finding("eviction", Verdict.FAIL, error.message, error.hint)
            return
        asked, self_restoring = time.monotonic(), restoring or "no scale set: the server starts the next machine"
        yield Finding("restore policy", Verdict.OK, self_restoring)
        self.tell(f"{run.name}: waiting for the eviction, which Azure may take 30 minutes for")
        evicted = self._until(run, _evicted, EVICTION_S)
        if evicted is None:
            yield Finding("eviction", Verdict.FAIL, _why(run, f"it did not come within {EVICTION_S:.0f} s"))
            return
        yield _taken(evicted, time.monotonic() - asked)
        self.tell(f"{run.name}: waiting for it to resume and end")
        resumed = self._until(run, _resumed, RESUME_S)
        if resumed is None:
            yield Finding("resume", Verdict.FAIL, _why(run, f"it did not resume within {RESUME_S:.0f} s"))
            return
        yield _went_on(evicted, resumed)
        run.wait(RESUME_S)
        ended = run.state is RunState.SUCCEEDED
        yield Finding("end", Verdict.OK if ended else Verdict.FAIL, _why(run, f"the run has {run.state}"))

    def _until(self, run: Run, found: Callable[[Run], Attempt | None], within_s: float) -> Attempt | None:
        give_up = time.monotonic() + within_s
        while time.monotonic() < give_up:
            attempt = found(run.refresh())
            if attempt is not None or run.state.ended or run.state is RunState.PAUSED:
                return attempt
            time.sleep(_LOOK_S)
        return None

    def _end(self, run: Run) -> None:
        with suppress(StokerError):
            if not run.refresh().state.ended:
                run.cancel()
            run.wait(RESUME_S)

    def _account(self, run: Run) -> Iterator[Finding]:
        receipt = self._settled(run)
        self.events = tuple(run.events())
        if receipt.taken and receipt.taken[0].steps_lost is not None:
            taken = receipt.taken[0]
            done = f"{taken.steps_lost:g} of {taken.step:g} steps were repeated"
            yield Finding("lost work", Verdict.OK, done)
        within = receipt.usd <= self.spend
        cost = f"{usd(receipt.usd)} of at most {usd(self.spend)}"
        yield Finding("cost", Verdict.OK if within else Verdict.FAIL, cost)
        left = list(receipt.left or ())
        left += [one.key for one in Nodes(self.client.connection).all() if one.key.startswith(run.facts.id)]
        if not left and receipt.final:
            yield Finding("left", Verdict.OK, "0 resources, $0.00/h: the cloud was asked after the end")
        else:
            what = ", ".join(left) or "not every machine has been seen gone"
            yield Finding("left", Verdict.FAIL, what, "stoker cleanup")

    def _settled(self, run: Run) -> Receipt:
        """Once everything of the run was seen gone: clouds delete slowly."""
        self.tell(f"{run.name}: waiting until nothing of it is left")
        give_up = time.monotonic() + _GONE_S
        receipt = run.receipt(look=True)
        while (receipt.left or not receipt.final) and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
            receipt = run.receipt(look=True)
        return receipt


def _at_work(run: Run) -> Attempt | None:
    """The first attempt, once its script has done a few steps: then there is something to lose."""
    attempt = run.facts.attempt
    alive = run.facts.metrics.get("alive")
    steps = (alive.step or 0) if alive else 0
    return attempt if attempt and attempt.state is AttemptState.RUNNING and steps >= _FIRST_STEPS else None


def _evicted(run: Run) -> Attempt | None:
    gone = (AttemptState.EVICTED, AttemptState.LOST)
    return next((one for one in run.facts.attempts if one.state in gone and one.started_at), None)


def _resumed(run: Run) -> Attempt | None:
    later = [one for one in run.facts.attempts if one.started_at is not None]
    return later[-1] if len(later) > 1 else None


def _booted(attempt: Attempt) -> Finding:
    offer = attempt.offer
    what = f"{offer.size} in {offer.place}, {usd(offer.usd_per_hour)}/h" if offer else "a machine"
    took = _between(attempt.asked_at, attempt.started_at)
    return Finding("machine", Verdict.OK, f"{what}; {took} from request to script")


def _taken(attempt: Attempt, waited_s: float) -> Finding:
    after = f"{waited_s:.0f} s after it was asked for"
    if attempt.notice is None:
        advice = "without a notice, what was done since the last checkpoint is repeated"
        return Finding("eviction", Verdict.WARN, f"it came {after}, without a notice", advice)
    notice_s = (attempt.notice.deadline - attempt.notice.at).total_seconds()
    return Finding("eviction", Verdict.OK, f"it came {after}, with {notice_s:.1f} s notice")


def _went_on(evicted: Attempt, resumed: Attempt) -> Finding:
    took = _between(evicted.ended_at, resumed.started_at)
    offer = resumed.offer
    where = f" on {offer.size} in {offer.place}" if offer else ""
    how = "restored by the cloud" if resumed.key == evicted.key else "started by the server"
    return Finding("resume", Verdict.OK, f"{took} from eviction to script{where}, {how}")


def _between(start: datetime | None, end: datetime | None) -> str:
    return f"{(end - start).total_seconds():.1f} s" if start and end else "an unknown time"


def _why(run: Run, text: str) -> str:
    return f"{text}: {run.facts.reason}" if run.facts.reason else text

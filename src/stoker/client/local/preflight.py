"""Whether a run in a cloud could start: checks, and the proof by a tiny run that is evicted."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.resources import Nodes, Stores
from stoker.client.local import rehearsal
from stoker.client.report.spelling import usd
from stoker.client.settings import ClientSettings
from stoker.client.submit import jobfile
from stoker.errors import BadInput, StokerError
from stoker.model.cause import Cause
from stoker.model.job.job import Environment, Fallback, Job, Packages, Spot
from stoker.model.node import Need
from stoker.model.run.receipt import Receipt
from stoker.model.run.run import Attempt, AttemptState, Event, RunState
from stoker.model.workspace.groundwork import GivenOptions
from stoker.model.workspace.store import FOLDER, CheckResult, Finding, KnownStore, failed, is_twin, original

Drill = Callable[[str], str]  # evicts the machine of a node in the cloud, and returns what will restore it

NAME = "doctor"
BOOT_S, EVICTION_S, RESUME_S = 900.0, 2400.0, 1200.0  # Azure evicts within half an hour of a request
_TIME_LIMIT_S = 4500.0
_GONE_S = 600.0
_FIRST_STEPS, _LOOK_S = 3, 1.0

# Works until it has been interrupted once, then for a few more steps. It knows only Stoker's folders.
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
    """With the machine's own Python: the time of an installation is not measured."""
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
    """`tell` receives progress messages. `events` are the run's timeline, once it has ended."""

    client: Client
    cloud: str
    spend: Decimal
    drill: Drill
    tell: Callable[[str], None] = lambda _: None
    events: tuple[Event, ...] = ()

    def findings(self) -> Iterator[Finding]:
        """Each step as it is observed. In any case the run has ended and its machine is released at the end."""
        with tempfile.TemporaryDirectory(prefix="stoker-doctor-") as folder:
            Path(folder, "heart.py").write_text(_SCRIPT, encoding="utf-8")
            try:
                run = self.client.submit(proof_job(self.cloud, self.spend), folder, say=self.tell)
            except StokerError as error:
                yield Finding("machine", CheckResult.FAIL, error.message, error.hint)
                return
            try:
                yield from self._story(run)
            finally:
                self._end(run)
            yield from self._account(run)

    def _story(self, run: RunHandle) -> Iterator[Finding]:
        self.tell(f"{run.name}: waiting for a spot machine")
        first = self._until(run, _at_work, BOOT_S)
        if first is None:
            yield Finding("machine", CheckResult.FAIL, _why(run, f"no machine was running after {BOOT_S:.0f} s"))
            return
        yield _booted(first)
        try:
            restoring = self.drill(first.key)
        except StokerError as error:
            yield Finding("eviction", CheckResult.FAIL, error.message, error.hint)
            return
        asked, self_restoring = time.monotonic(), restoring or "no scale set: the server starts the next machine"
        yield Finding("restore policy", CheckResult.OK, self_restoring)
        self.tell(f"{run.name}: waiting for the eviction; Azure may take 30 minutes")
        evicted = self._until(run, _evicted, EVICTION_S)
        if evicted is None:
            yield Finding("eviction", CheckResult.FAIL, _why(run, f"not evicted within {EVICTION_S:.0f} s"))
            return
        yield _taken(evicted, time.monotonic() - asked)
        self.tell(f"{run.name}: waiting for it to resume and finish")
        resumed = self._until(run, _resumed, RESUME_S)
        if resumed is None:
            yield Finding("resume", CheckResult.FAIL, _why(run, f"it did not resume within {RESUME_S:.0f} s"))
            return
        yield _went_on(evicted, resumed)
        run.wait(RESUME_S)
        ended = run.state is RunState.SUCCEEDED
        yield Finding("end", CheckResult.OK if ended else CheckResult.FAIL, _why(run, f"the run has {run.state}"))

    def _until(self, run: RunHandle, found: Callable[[RunHandle], Attempt | None], within_s: float) -> Attempt | None:
        give_up = time.monotonic() + within_s
        while time.monotonic() < give_up:
            attempt = found(run.refresh())
            if attempt is not None or run.state.ended or run.state is RunState.PAUSED:
                return attempt
            time.sleep(_LOOK_S)
        return None

    def _end(self, run: RunHandle) -> None:
        with suppress(StokerError):
            if not run.refresh().state.ended:
                run.cancel()
            run.wait(RESUME_S)

    def _account(self, run: RunHandle) -> Iterator[Finding]:
        receipt = self._settled(run)
        self.events = tuple(run.events())
        if receipt.taken and receipt.taken[0].steps_lost is not None:
            taken = receipt.taken[0]
            done = f"{taken.steps_lost:g} of {taken.step:g} steps were repeated"
            yield Finding("lost work", CheckResult.OK, done)
        within = receipt.usd <= self.spend
        cost = f"{usd(receipt.usd)} of at most {usd(self.spend)}"
        yield Finding("cost", CheckResult.OK if within else CheckResult.FAIL, cost)
        left = list(receipt.left or ())
        left += [one.key for one in Nodes(self.client.connection).all() if one.key.startswith(run.facts.id)]
        if not left and receipt.final:
            yield Finding("left", CheckResult.OK, "0 resources, $0.00/h, as listed by the cloud after the end")
        else:
            what = ", ".join(left) or "not every machine is confirmed as removed"
            yield Finding("left", CheckResult.FAIL, what, "stoker cleanup")

    def _settled(self, run: RunHandle) -> Receipt:
        """Until every resource of the run is confirmed as removed: clouds delete slowly."""
        self.tell(f"{run.name}: waiting until nothing of it is left")
        give_up = time.monotonic() + _GONE_S
        receipt = run.receipt(look=True)
        while (receipt.left or not receipt.final) and time.monotonic() < give_up:
            time.sleep(_LOOK_S)
            receipt = run.receipt(look=True)
        return receipt


def _at_work(run: RunHandle) -> Attempt | None:
    """The first attempt, once its script has done a few steps: then there is something to lose."""
    attempt = run.facts.attempt
    alive = run.facts.metrics.get("alive")
    steps = (alive.step or 0) if alive else 0
    return attempt if attempt and attempt.state is AttemptState.RUNNING and steps >= _FIRST_STEPS else None


def _evicted(run: RunHandle) -> Attempt | None:
    gone = (AttemptState.EVICTED, AttemptState.LOST)
    return next((one for one in run.facts.attempts if one.state in gone and one.started_at), None)


def _resumed(run: RunHandle) -> Attempt | None:
    later = [one for one in run.facts.attempts if one.started_at is not None]
    return later[-1] if len(later) > 1 else None


def _booted(attempt: Attempt) -> Finding:
    offer = attempt.offer
    what = f"{offer.size} in {offer.place}, {usd(offer.usd_per_hour)}/h" if offer else "a machine"
    took = _between(attempt.asked_at, attempt.started_at)
    return Finding("machine", CheckResult.OK, f"{what}; {took} from request to script start")


def _taken(attempt: Attempt, waited_s: float) -> Finding:
    after = f"{waited_s:.0f} s after the request"
    if attempt.notice is None:
        advice = "without a notice, the work since the last checkpoint is repeated"
        return Finding("eviction", CheckResult.WARN, f"evicted {after}, without notice", advice)
    notice_s = (attempt.notice.deadline - attempt.notice.at).total_seconds()
    return Finding("eviction", CheckResult.OK, f"evicted {after}, with {notice_s:.1f} s notice")


def _went_on(evicted: Attempt, resumed: Attempt) -> Finding:
    took = _between(evicted.ended_at, resumed.started_at)
    offer = resumed.offer
    where = f" on {offer.size} in {offer.place}" if offer else ""
    how = "restored by the cloud" if resumed.key == evicted.key else "started by the server"
    return Finding("resume", CheckResult.OK, f"{took} from eviction to script start{where}, {how}")


def _between(start: datetime | None, end: datetime | None) -> str:
    return f"{(end - start).total_seconds():.1f} s" if start and end else "an unknown time"


def _why(run: RunHandle, text: str) -> str:
    return f"{text}: {run.facts.reason}" if run.facts.reason else text


Say = Callable[[str], None]


def asked_of(cloud: str, settings: ClientSettings, say: Say) -> GivenOptions:
    """The account that runs there use. A twin is started if necessary."""
    twin = rehearsal.rehearse(settings, say) if is_twin(cloud) else None
    return GivenOptions({}, twin=twin, folder=settings.home.root)


@contextmanager
def recorded(cloud: str, settings: ClientSettings, file: Path | None) -> Iterator[None]:
    """Requests to the cloud meanwhile are recorded to the file, without secrets; None: nothing is written."""
    if file is None:
        yield
        return
    if not file.absolute().parent.is_dir():
        raise BadInput(
            f"the folder of {file} does not exist", hint=f"mkdir -p {file.parent}", cause=Cause.FILE_UNWRITABLE
        )
    with rehearsal.find(original(cloud)).recording(GivenOptions({}, folder=settings.home.root), file):
        yield


def findings(cloud: str, settings: ClientSettings, needs: tuple[Need, ...], say: Say) -> Iterator[Finding]:
    """One at a time: some of them take a cloud several seconds."""
    found = rehearsal.find(original(cloud))
    asked = asked_of(cloud, settings, say)
    yield from found.preflight(asked, needs)
    yield from _store(cloud, settings, say)


def proof(cloud: str, settings: ClientSettings, spend: Decimal, say: Say) -> Proof:
    """The proof that costs money, once all checks pass."""
    found, asked = rehearsal.find(original(cloud)), asked_of(cloud, settings, say)
    return Proof(Client.connect(settings), cloud, spend, lambda key: found.drill(asked, key), say)


def needs_of(folder: Path) -> tuple[tuple[Need, ...], str]:
    """What a run needs, spot first, and where that is defined: the job file of the folder, if there is one."""
    path = folder / "stoker.yaml"
    if not path.is_file():
        return (Need(spot=True), Need()), ""
    return needs_for(jobfile.read(path, ()).job), path.name


def needs_for(job: Job) -> tuple[Need, ...]:
    return tuple(
        Need(
            spot=spot,
            cpus=job.cpus or 0,
            memory_gb=job.memory or 0.0,
            gpus=job.gpus or (1 if job.gpu else 0),
            gpu=job.gpu or "",
            size=job.size or "",
        )
        for spot in (True, False)
    )


def _store(cloud: str, settings: ClientSettings, say: Say) -> Iterator[Finding]:
    try:
        client = Client.connect(settings)
        stores = Stores(client.connection)
        known = _used(cloud, settings, client, stores, say)
        if known.name == FOLDER:
            advice = "stoker store add blob az://ACCOUNT/CONTAINER --use"
            yield Finding(
                "store", CheckResult.FAIL, f"{known.url} is a folder: machines in a cloud cannot reach it", advice
            )
            return
        found = stores.check(known.name)
    except StokerError as error:
        yield Finding("store", CheckResult.FAIL, error.message, error.hint)
        return
    bad = [one for one in found if one.verdict is not CheckResult.OK]
    if not bad:
        reach = next((one.found for one in found if one.name == "reach"), "")
        yield Finding("store", CheckResult.OK, f"{known.name} at {known.url}: {reach}; each node gets its own token")
    for one in bad:
        yield Finding(f"store {one.name}", one.verdict, one.found, one.advice)


def _used(cloud: str, settings: ClientSettings, client: Client, stores: Stores, say: Say) -> KnownStore:
    name = ""
    if is_twin(cloud):
        from stoker.client.local import (
            rehearsal,
            twin,  # needed only for a rehearsal
        )

        told, _ = twin.up(settings, twin.TwinOptions(blob=True))
        name = rehearsal.store(told, settings, client.connection, say)
    every = stores.all()
    return next((one for one in every if (one.name == name if name else one.workspace)), every[0])


# The report of a preflight and its proof as Markdown, to share with colleagues: without secrets and ids. Pure.

_GUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_TOKEN = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|(?i:\bsig=)[^&\s]+")


def markdown(
    cloud: str, version: str, at: datetime, findings: Sequence[Finding], events: Sequence[Event] = (), home: str = ""
) -> str:
    """`home` is a local path that is removed from the report."""
    verdict = "a run could **not** start" if failed(findings) else "runs can start"
    lines = [
        f"# Stoker {version} on `{cloud}`: {verdict}",
        "",
        f"Checked on {at:%Y-%m-%d %H:%M} UTC with `stoker doctor`.",
        "",
        "| check | | found | what to do |",
        "|---|---|---|---|",
        *(f"| {one.name} | {one.verdict} | {_cell(one.found)} | {_cell(one.advice)} |" for one in findings),
    ]
    if events:
        lines += ["", "## What happened to the run", "", "| UTC | event | |", "|---|---|---|"]
        lines += [f"| {one.at:%H:%M:%S} | {one.kind} | {_cell(one.text)} |" for one in events]
    text = "\n".join(lines) + "\n"
    return _plain(text.replace(home, "~") if home else text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    text = _TOKEN.sub("<secret>", _MAIL.sub("<mail>", text))
    return _GUID.sub(lambda found: f"{found[1]}-…", text)

"""The certification itself: runs a job undisturbed, then evicts it repeatedly, and collects evidence."""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import quote

from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.reading import WantedResults, What
from stoker.client.certify import code, files
from stoker.client.certify import evidence as moments
from stoker.client.certify.evidence import (
    AttemptTrace,
    Evidence,
    Moment,
    Pace,
    Series,
    Trace,
    Victim,
    changed,
    comparable,
    reported_series,
    telling,
    told_steps,
)
from stoker.client.certify.files import FileChange
from stoker.client.certify.verdict import (
    all_resumes,
    control_differs,
    differs,
    is_comparable,
    starts_over,
    telling_evictions,
)
from stoker.client.certify.watching import CertifiedWorld, RunWatch, kill, with_victims
from stoker.client.script.resumeflag import resume_arguments
from stoker.client.script.script import look
from stoker.errors import Conflict, StokerError
from stoker.model import wire
from stoker.model.job.commandline import commands
from stoker.model.job.job import Job, Launcher
from stoker.model.job.sections import BESIDE
from stoker.model.job.values import NodeRange
from stoker.model.run.report import Outcome
from stoker.model.run.run import Attempt, AttemptState, Event, RunState
from stoker.model.snapshot import CheckpointSet, Snapshot

Tell = Callable[[str], None]

_MORE_RUNS = 3  # extra runs, if evictions came too late or no checkpoint was committed yet
_LAST_WORDS_BYTES = 8192
_CANCEL_S = 60.0
_NAME_LENGTH = 60
_SUFFIX = "-certify"
_HOOK = "stoker: exact: "  # prefix of messages from the hook of `exact: true`
_STEP = re.compile(r"\(step ([^)]+)\)")


@dataclass
class Certification:
    """One certification. Its runs form a separate experiment, and their outputs are not downloaded."""

    client: Client
    job: Job
    folder: Path
    tell: Tell = lambda _text: None
    runs: list[RunHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Outputs stay in the store, as with a remote server: the user's folder is not filled with them.
        apart = replace(self.client.settings, server=self.client.connection.address.url)
        self.client = Client(apart, self.client.connection)
        self.job = _certified(self.job)
        self._pace = Pace()  # of the undisturbed run
        self._until = 0.0  # by the monotonic clock: when runs with evictions are given up
        self._out_of_time = False
        self._killed: dict[tuple[str, int], str] = {}  # by run and attempt: the rank or node

    def carry_out(self, evictions: int, seed: int) -> Evidence:
        """Raises what `submit` raises. No active run is left in any case."""
        try:
            return self._carry_out(evictions, random.Random(seed))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancels whatever is active."""
        for run in self.runs:
            if not run.state.ended:
                with suppress(StokerError):
                    run.cancel()

    def remove(self) -> None:
        """Deletes all its runs, with their stored files."""
        for run in self.runs:
            with suppress(StokerError):
                self.client.remove(run.name)

    def _carry_out(self, evictions: int, chance: random.Random) -> Evidence:
        self.tell(f"running it undisturbed; {_runs(evictions)} follow, which take a few times as long")
        plain = self._run(())
        folder = next(iter(self.job.checkpoints), "checkpoints").rstrip("/")
        evidence = Evidence(plain, checkpoints=folder, outputs=self.job.outputs, saved=self._saved(self.runs[0]))
        evidence = replace(evidence, code=self._code(), resume=self._resume(), exact=_exact(self.job), pace=self._pace)
        if not plain.succeeded:
            return evidence
        self.tell(f"  {plain.run} took {plain.took_s:.1f} s")
        if not is_comparable(evidence) or moments.too_short(plain.ran_s):
            return evidence
        if why := moments.unseeded(evidence.code):
            self.tell(f"{why}: running it undisturbed again, to check whether it is deterministic")
            evidence = self._with_control(evidence)
            if control_differs(evidence):
                return evidence
        seconds = moments.expected_s(plain.ran_s, plain.took_s, evictions)
        limit_s = moments.limit_s(seconds)
        self.tell(f"{_runs(evictions)} will take about {seconds:.0f} s, at most {limit_s:.0f} s")
        self._until = time.monotonic() + limit_s
        evidence = self._disturb(evidence, evictions, chance)
        done = all(trace.succeeded for trace in evidence.disturbed)
        if evidence.control is None and differs(evidence) and done:
            self.tell("something differs: running it undisturbed again, to check whether evictions are the cause")
            self._until = max(self._until, time.monotonic() + moments.limit_s(plain.took_s))
            evidence = self._with_control(evidence)
        return evidence

    def _with_control(self, evidence: Evidence) -> Evidence:
        control = self._run(())
        if self._out_of_time:
            why = f"a second undisturbed run did not end within {control.took_s:.0f} s"
            return replace(evidence, unfinished=why)
        return replace(evidence, control=control, control_files=self._files(evidence.undisturbed, control))

    def _disturb(self, evidence: Evidence, evictions: int, chance: random.Random) -> Evidence:
        """Until all evictions have happened and one of them had a checkpoint to resume from, or the fault is
        obvious, or the time is up."""
        plain = evidence.undisturbed
        first_s = moments.START_SHARE * plain.ran_s if self._pace.first_s is None else self._pace.first_s
        waiting = self._plan(chance, plain.ran_s, first_s, evictions)
        for _ in range(len(waiting) + _MORE_RUNS):
            left = evictions - telling_evictions(evidence)
            if left <= 0 and (evidence.restored or not evidence.saved):
                break
            planned, *waiting = waiting or self._plan(chance, plain.ran_s, first_s, max(left, 1))
            planned = moments.sooner(planned, sum(one.too_late - (not one.restored) for one in all_resumes(evidence)))
            self.tell(f"running it with {len(planned)} eviction{'s' * (len(planned) != 1)}")
            trace = self._run(planned)
            self.tell(f"  {trace.run} took {trace.took_s:.1f} s")
            if self._out_of_time:
                why = f"{trace.run} was still running after {trace.took_s:.0f} s, at the time limit"
                return replace(evidence, unfinished=why)
            changes = self._files(plain, trace) if trace.succeeded else ()
            evidence = replace(evidence, disturbed=(*evidence.disturbed, trace), files=(*evidence.files, *changes))
            if not trace.succeeded or differs(evidence) or starts_over(evidence):
                break
            if time.monotonic() > self._until:
                return replace(evidence, unfinished="the time limit was reached")
        return evidence

    def _plan(self, chance: random.Random, ran_s: float, first_s: float, evictions: int) -> list[tuple[Moment, ...]]:
        return with_victims(moments.plan(chance, ran_s, first_s, evictions), CertifiedWorld.of(self.job), chance)

    def _run(self, planned: Collection[Moment]) -> Trace:
        """Runs it with these evictions to the end. A rank that is killed is a failure of the script, so the run has a
        retry for each."""
        kills = sum(one.victim is not None and one.victim.rank is not None for one in planned)
        run = self.client.submit(replace(self.job, retries=kills), self.folder)
        self.runs.append(run)
        usual = self._pace if len(self.runs) > 1 else None
        quiet_s = usual.quiet_s if usual and usual.visible else None
        until = self._until if usual else None
        watch = RunWatch(run, self.client.connection, self.tell, until, quiet_s, usual)
        for number, moment in enumerate(planned, 1):
            self._evict(watch, number, moment)
        watch.wait(lambda: False)
        if watch.given_up:
            run.cancel().wait(_CANCEL_S)
        self._out_of_time = watch.out_of_time
        if usual is None:
            self._pace = watch.pace()
        return self._trace(run, timed_out=watch.stalled)

    def _evict(self, watch: RunWatch, number: int, moment: Moment) -> None:
        """The attempt of this number, unless the run ends before."""
        run = watch.run
        watch.wait(lambda: _started(run, number) is not None)
        started = _started(run, number)
        if started is None or watch.given_up:
            return
        if moment.share is None:
            self._await_time(watch, number, moment, started)
        else:
            self._await_share(watch, number, moment, started)
        if run.state.ended or watch.given_up or _over(run, number):
            return
        notice = f"with {moment.notice_s:g} s notice" if moment.notice_s else "without notice"
        with suppress(Conflict):  # it has just ended
            if moment.victim:
                self._kill(watch, number, moment.victim)
            else:
                run.evict(moment.notice_s)
                self.tell(f"  eviction {notice}")
        watch.wait(lambda: _over(run, number))

    def _await_time(self, watch: RunWatch, number: int, moment: Moment, started: datetime) -> None:
        until = started + timedelta(seconds=moment.after_s)
        watch.wait(lambda: datetime.now(UTC) >= until or _over(watch.run, number), close=True)

    def _await_share(self, watch: RunWatch, number: int, moment: Moment, started: datetime) -> None:
        """Until it has done its share, and has a checkpoint unless the script saves only near its end. With a notice
        there is time to keep what it has saved."""
        if self._pace.visible and moment.share is not None:
            before = sum(watch.done(one, self._pace) or 0.0 for one in range(1, number))
            share = moments.wanted(moment.share, self._pace, before, saved=watch.saved or moment.hurried)
            reached = partial(self._has_done, watch, number, share)
            watch.wait(lambda: reached() or _over(watch.run, number), close=True)
        else:
            self._await_time(watch, number, moment, started)
        if not (moment.notice_s or moment.hurried or self._pace.saves_late):
            watch.wait(lambda: watch.saved or _over(watch.run, number), close=True)

    def _has_done(self, watch: RunWatch, number: int, share: float) -> bool:
        return (watch.done(number, self._pace) or 0.0) >= share

    def _kill(self, watch: RunWatch, number: int, victim: Victim) -> None:
        """One rank or node of the attempt with this number."""
        visit = kill(watch.run, victim)
        self._killed[watch.run.name, number] = str(victim)
        self.tell(f"  {victim} killed")
        watch.wait(lambda: _over(watch.run, number))
        with suppress(StokerError):
            visit.end()

    def _trace(self, run: RunHandle, *, timed_out: bool) -> Trace:
        facts = run.refresh().facts
        events, points = run.events(), run.metrics()
        reported, told = reported_series(points), told_steps(points)
        printed = Counter[int]()
        for log in run.log_list():
            printed[log.attempt] += log.size_bytes
        attempts = tuple(
            replace(
                _attempt(one, reported.get(one.number, {}), events),
                told_step=told.get(one.number),
                printed=printed[one.number],
            )
            for one in facts.attempts
        )
        attempts = tuple(self._with_kill(run.name, number, one) for number, one in enumerate(attempts, 1))
        failed = {one.number for one in facts.attempts if one.outcome is Outcome.FAILED}
        own_fault = any((run.name, number) not in self._killed for number in failed)
        return Trace(
            run=run.name,
            attempts=attempts,
            files=self._outputs(run.name),
            succeeded=facts.state is RunState.SUCCEEDED and not own_fault,
            timed_out=timed_out,
            took_s=((facts.ended_at or datetime.now(UTC)) - facts.submitted_at).total_seconds(),
            reason=facts.reason,
            exit_code=facts.exit_code,
            last_words=self._last_words(run) if facts.state is RunState.FAILED else "",
            kept=self._kept(run),
            hook_words=self._hook_words(run) if self.job.exact else (),
        )

    def _with_kill(self, run: str, number: int, attempt: AttemptTrace) -> AttemptTrace:
        """Of a rank or node that was killed, whatever its end is called."""
        killed = self._killed.get((run, number), "")
        return replace(attempt, evicted=True, killed=killed) if killed else attempt

    def _outputs(self, name: str) -> dict[str, str]:
        listed = self.client.connection.get(f"/v1/runs/{quote(name, safe='')}/files/{What.OUTPUTS}")
        entries = wire.from_plain(Snapshot, listed).entries
        return {one.path: one.sha256 for one in entries if one.sha256 and not one.path.endswith(BESIDE)}

    def _saved(self, run: RunHandle) -> tuple[str, ...]:
        """The paths in its newest checkpoint; none if there is no checkpoint."""
        kept = self.client.connection.get(f"/v1/runs/{quote(run.name, safe='')}/checkpoints")["newest"]
        return tuple(entry.path for entry in wire.from_plain(CheckpointSet, kept).entries) if kept else ()

    def _kept(self, run: RunHandle) -> dict[str, str]:
        """Its last checkpoint."""
        found = self.client.connection.get(f"/v1/runs/{quote(run.name, safe='')}/checkpoints")["newest"]
        return comparable(wire.from_plain(CheckpointSet, found).entries, self.job.outputs) if found else {}

    def _hook_words(self, run: RunHandle) -> tuple[str, ...]:
        said: dict[str, None] = {}
        for attempt in range(1, len(run.facts.attempts) + 1):
            text = b"".join(run.logs(attempt=attempt)).decode(errors="replace")
            said |= dict.fromkeys(line.removeprefix(_HOOK) for line in text.splitlines() if line.startswith(_HOOK))
        return tuple(said)

    def _last_words(self, run: RunHandle) -> str:
        words = b""
        for piece in run.logs():
            words = (words + piece)[-_LAST_WORDS_BYTES:]
        return words.decode(errors="replace")

    def _files(self, plain: Trace, other: Trace) -> tuple[FileChange, ...]:
        """What differs, and by how much. Files are downloaded only if hashes differ."""
        outputs = self._compared(plain, other, files.changed(plain.files, other.files), What.OUTPUTS)
        saved = self._compared(plain, other, changed(plain.kept, other.kept), What.CHECKPOINT)
        return (*outputs, *filter(telling, saved))

    def _compared(self, plain: Trace, other: Trace, paths: list[str], what: What) -> tuple[FileChange, ...]:
        if not paths:
            return ()
        with tempfile.TemporaryDirectory(prefix="stoker-certify-") as place:
            names = (plain.run, other.run)
            first, second = (self.client.run(name).fetch_files(WantedResults(what), place)[0] for name in names)
            return tuple(replace(files.compare(first, second, path), run=other.run) for path in paths)

    def _resume(self) -> str:
        """What `stoker init` would propose, if the job has no such setting."""
        if self.job.resume or "${resume}" in self.job.run:
            return ""
        source = self.folder / Path(self.job.source).expanduser()
        starts = [one.script for one in commands(self.job.run) if one.script.endswith(".py")]
        script = look(source / starts[-1], starts[-1]) if starts else None
        if script is None:
            return ""
        script.follow(source)
        return resume_arguments(script, {})

    def _code(self) -> tuple[code.CodeLine, ...]:
        snapshot = self.runs[0].facts.snapshot
        listed = self.client.connection.get(f"/v1/snapshots/{quote(snapshot, safe='')}")
        entries = wire.from_plain(Snapshot, listed).entries
        source = self.folder / Path(self.job.source).expanduser()
        return code.look(source, [entry.path for entry in entries], self.job.run)


def _certified(job: Job) -> Job:
    """The same training on this computer, as a separate experiment.

    A failure is final: nothing is retried. A target would end runs at times that depend on the computer's load, so each
    runs to its end.
    """
    name = f"{job.name[: _NAME_LENGTH - len(_SUFFIX)].rstrip('._-')}{_SUFFIX}"
    return replace(job, name=name, on="local", spot=None, budget=None, deadline=None, retries=0, stop_when=None)


def _exact(job: Job) -> bool | None:
    return None if job.launcher is Launcher.MPI or isinstance(job.nodes, NodeRange) else job.exact


def _runs(evictions: int) -> str:
    return "the run with an eviction" if evictions == 1 else f"the runs with {evictions} evictions"


def _started(run: RunHandle, number: int) -> datetime | None:
    """When the script of this attempt started; None: not yet, or never."""
    attempts = run.facts.attempts
    if len(attempts) < number or attempts[number - 1].state is not AttemptState.RUNNING:
        return None
    return attempts[number - 1].started_at


def _over(run: RunHandle, number: int) -> bool:
    attempt = run.facts.attempts[number - 1]
    return attempt.state not in (AttemptState.ASKED, AttemptState.RUNNING)


def _attempt(attempt: Attempt, series: dict[str, Series], events: list[Event]) -> AttemptTrace:
    ended = attempt.ended_at or datetime.now(UTC)
    during = [event for event in events if attempt.asked_at <= event.at <= ended]
    restored = next((event for event in during if event.kind == "restored"), None)
    step = _STEP.search(restored.text) if restored else None
    return AttemptTrace(
        series=series,
        ran_s=(ended - attempt.started_at).total_seconds() if attempt.started_at else 0.0,
        restored=restored is not None,
        restored_step=float(step[1]) if step else None,
        saved=attempt.saved,
        evicted=attempt.state is AttemptState.EVICTED,
        notice_s=attempt.notice.seconds if attempt.notice else 0.0,
    )

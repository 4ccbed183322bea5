"""The certification itself: runs a job undisturbed, then evicts it repeatedly, and collects evidence."""

from __future__ import annotations

import random
import re
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
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
from stoker.client.certify.killing import CertifiedWorld, kill, with_victims
from stoker.client.certify.verdict import all_resumes, control_differs, differs, is_comparable, telling_evictions
from stoker.client.script.resumeflag import resume_arguments
from stoker.client.script.script import look
from stoker.errors import Conflict, StokerError
from stoker.model import wire
from stoker.model.job.commandline import commands
from stoker.model.job.job import Job
from stoker.model.job.sections import BESIDE
from stoker.model.run.report import Outcome
from stoker.model.run.run import Attempt, AttemptState, Event, RunState
from stoker.model.snapshot import CheckpointSet, Snapshot

Tell = Callable[[str], None]

_MORE_RUNS = 3  # extra runs, if evictions came too late or no checkpoint was committed yet
_LAST_WORDS_BYTES = 8192
_CANCEL_S = 60.0
_PAUSE_S = 0.05  # between polls of a run's progress; grows, because long runs have many points
_LONGEST_PAUSE_S = 5.0
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
        self._points = 0  # reported by the undisturbed run
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
        self.tell("running it undisturbed")
        plain = self._run(())
        folder = next(iter(self.job.checkpoints), "checkpoints").rstrip("/")
        evidence = Evidence(plain, checkpoints=folder, outputs=self.job.outputs, saved=self._saved(self.runs[0]))
        evidence = replace(evidence, code=self._code(), resume=self._resume(), exact=_exact(self.job))
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
        self.tell(f"the runs with evictions will take about {seconds:.0f} s")
        evidence = self._disturb(evidence, evictions, chance)
        if evidence.control is None and differs(evidence) and all(trace.succeeded for trace in evidence.disturbed):
            self.tell("something differs: running it undisturbed again, to check whether evictions are the cause")
            evidence = self._with_control(evidence)
        return evidence

    def _with_control(self, evidence: Evidence) -> Evidence:
        control = self._run(())
        return replace(evidence, control=control, control_files=self._files(evidence.undisturbed, control))

    def _disturb(self, evidence: Evidence, evictions: int, chance: random.Random) -> Evidence:
        """Until all evictions have happened and one of them had a checkpoint to resume from, or the fault is
        obvious."""
        plain, first_s = evidence.undisturbed, self._first_s(evidence.undisturbed)
        waiting = self._plan(chance, plain.ran_s, first_s, evictions)
        for _ in range(len(waiting) + _MORE_RUNS):
            left = evictions - telling_evictions(evidence)
            if left <= 0 and (evidence.restored or not evidence.saved):
                break
            planned, *waiting = waiting or self._plan(chance, plain.ran_s, first_s, max(left, 1))
            planned = moments.sooner(planned, sum(one.too_late - (not one.restored) for one in all_resumes(evidence)))
            self.tell(f"running it with {len(planned)} eviction{'s' * (len(planned) != 1)}")
            trace = self._run(planned, moments.patience_s(plain.ran_s, len(planned)))
            self.tell(f"  {trace.run} took {trace.took_s:.1f} s")
            changes = self._files(plain, trace) if trace.succeeded else ()
            evidence = replace(evidence, disturbed=(*evidence.disturbed, trace), files=(*evidence.files, *changes))
            if not trace.succeeded or differs(evidence):
                break
        return evidence

    def _plan(self, chance: random.Random, ran_s: float, first_s: float, evictions: int) -> list[tuple[Moment, ...]]:
        return with_victims(moments.plan(chance, ran_s, first_s, evictions), CertifiedWorld.of(self.job), chance)

    def _run(self, planned: Collection[Moment], patience_s: float | None = None) -> Trace:
        """Runs it with these evictions to the end. None: without a time limit. A rank that is killed is a failure of
        the script, so the run has a retry for each."""
        kills = sum(one.victim is not None and one.victim.rank is not None for one in planned)
        run = self.client.submit(replace(self.job, retries=kills), self.folder)
        self.runs.append(run)
        give_up = None if patience_s is None else time.monotonic() + patience_s
        for number, moment in enumerate(planned, 1):
            self._evict(run, number, moment, give_up)
        _wait(run, give_up, lambda: False)
        timed_out = not run.state.ended
        if timed_out:
            run.cancel().wait(_CANCEL_S)
        return self._trace(run, timed_out=timed_out)

    def _evict(self, run: RunHandle, number: int, moment: Moment, give_up: float | None) -> None:
        """The attempt of this number; None if the run ends before."""
        _wait(run, give_up, lambda: _started(run, number) is not None)
        started = _started(run, number)
        if started is None:
            return
        since_s = (datetime.now(UTC) - started).total_seconds()
        if moment.share is not None and self._points:
            self._wait_for_points(run, number, max(1.0, moment.share * self._points), give_up)
        else:
            begin = time.monotonic() + max(moment.after_s - since_s, 0.0)
            _wait(run, begin if give_up is None else min(begin, give_up), lambda: _over(run, number))
        if run.state.ended or _over(run, number):
            return
        notice = f"with {moment.notice_s:g} s notice" if moment.notice_s else "without notice"
        with suppress(Conflict):  # it has just ended
            if moment.victim:
                self._kill(run, number, moment.victim, give_up)
            else:
                run.evict(moment.notice_s)
                self.tell(f"  eviction {notice}")
        _wait(run, give_up, lambda: _over(run, number))

    def _kill(self, run: RunHandle, number: int, victim: Victim, give_up: float | None) -> None:
        """One rank or node of the attempt with this number."""
        visit = kill(run, victim)
        self._killed[run.name, number] = str(victim)
        self.tell(f"  {victim} killed")
        _wait(run, give_up, lambda: _over(run, number))
        with suppress(StokerError):
            visit.end()

    def _wait_for_points(self, run: RunHandle, number: int, wanted: float, give_up: float | None) -> None:
        """Until the attempt has reported so many points: its speed depends on the computer's load."""
        after = reported = 0
        pause_s = _PAUSE_S
        while reported < wanted and (give_up is None or time.monotonic() < give_up):
            answer = self.client.connection.get(f"/v1/runs/{quote(run.name, safe='')}/metrics", {"after": after})
            reported += sum(point["attempt"] == number for point in answer["points"])
            after = answer["next"]
            if run.refresh().state.ended or _over(run, number):
                return
            _wait(run, time.monotonic() + pause_s, lambda: _over(run, number))
            pause_s = min(pause_s * 1.02, _LONGEST_PAUSE_S)

    def _first_s(self, plain: Trace) -> float:
        """How long the script took to its first step; a tenth of the total if it reports none."""
        points, started = self.runs[0].metrics(), self.runs[0].facts.started_at
        self._points = len(points)
        if not points or started is None:
            return 0.1 * plain.ran_s
        return min(max((points[0].at - started).total_seconds(), 0.0), plain.ran_s)

    def _trace(self, run: RunHandle, *, timed_out: bool) -> Trace:
        facts = run.refresh().facts
        events, points = run.events(), run.metrics()
        reported, told = reported_series(points), told_steps(points)
        attempts = tuple(
            replace(_attempt(one, reported.get(one.number, {}), events), told_step=told.get(one.number))
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
    return job.exact if job.processes == 1 and job.most_nodes == 1 else None


def _wait(run: RunHandle, until: float | None, enough: Callable[[], bool]) -> None:
    """Until the run has ended, the time is up, or the condition holds."""
    left_s = None if until is None else max(until - time.monotonic(), 0.0)
    for _ in run.changes(left_s):
        if run.state.ended or enough():
            return


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
        evicted=attempt.state is AttemptState.EVICTED,
        notice_s=attempt.notice.seconds if attempt.notice else 0.0,
    )

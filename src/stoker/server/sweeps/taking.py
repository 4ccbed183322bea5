"""Takes a sweep in: its trials are checked once, and saved together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from stoker.engine import decision
from stoker.engine.decision import Decision
from stoker.engine.money.fuse import dollars
from stoker.errors import BadInput, Conflict, JobInvalid, Problem
from stoker.model.job.job import Job
from stoker.model.job.matrix import MOST_TRIALS, Values
from stoker.model.job.search import AT_ONCE, Trial
from stoker.model.job.trials import places, template, trial_job, varying
from stoker.model.run.run import Event, Run, RunState, Submission
from stoker.model.run.sweep import Sweep
from stoker.server.api.runs import CheckedSubmission, arriving, check, new_run, pinned_inputs
from stoker.server.inputs import Pinned
from stoker.server.records.sweeps import TrialRow
from stoker.server.rounds.outside import call
from stoker.server.service import Service
from stoker.server.sweeps import study


async def take(service: Service, submission: Submission) -> Sweep:
    """A new sweep with all its trials. The same submission again gives the same sweep."""
    if known := await call(service.sweeps.table.submitted, submission.key):
        return known
    job = submission.job
    if job.matrix is None:
        raise JobInvalid([Problem("matrix", "nothing", "the values of the trials")])
    if submission.terminal or submission.start_from:
        raise BadInput("trials of a sweep have no terminal, and start from nothing")
    values = await call(_first_values, job)
    checked = await _checked(service, submission, values)
    now = service.clock.now()
    kept = replace(checked.submission, job=job, secrets={})
    sweep = Sweep(
        id=f"{int(now.timestamp() * 1000):012x}{os.urandom(4).hex()}",
        name=submission.name,
        number=0,
        submission=kept,
        store=checked.store,
        submitted_at=now,
        trials=len(values),
        max_parallel=_at_once(job),
        budget=job.budget,
    )
    numbered = [Trial(sweep.id, at, one) for at, one in enumerate(values, 1)]
    return await _save(service, sweep, checked, numbered, new=True)


def _first_values(job: Job) -> list[Values]:
    """Of all trials, or of the first ones of a search that draws them."""
    assert job.matrix is not None
    if job.search and job.search.draws:
        return study.ask(job, (), 1, min(_at_once(job) or 1, job.matrix.draws))
    return list(job.matrix.trials())


def _at_once(job: Job) -> int | None:
    return job.max_parallel or (AT_ONCE if job.search and job.search.draws else None)


async def add_drawn(service: Service, sweep: Sweep, trials: Sequence[Trial]) -> None:
    """More trials of a search that draws them. The caller holds `growing`."""
    submission = replace(sweep.submission, secrets=service.vault.values(sweep.id), store=sweep.store)
    checked = await _checked(service, submission, [trial.values for trial in trials])
    grown = replace(sweep, trials=sweep.trials + len(trials))
    await _save(service, grown, checked, trials, new=False, drawn=True)


async def _draw_more(service: Service, sweep: Sweep, job: Job, secrets: Mapping[str, str]) -> Sweep:
    assert job.matrix is not None and sweep.job.matrix is not None
    if replace(job.matrix, draws=1) != replace(sweep.job.matrix, draws=1):
        raise JobInvalid([Problem("matrix", "other values", "the parameters of the search, and more `draws`")])
    async with service.sweeps.growing(sweep), service.ledger.lock:
        now = service.sweeps.now(sweep)
        if job.matrix.draws <= now.trials:
            raise Conflict(f"`{sweep.name}` has {now.trials:,} trials already", hint=f"stoker sweep show {sweep.name}")
        grown = replace(now, submission=replace(now.submission, job=job), cancelled=False, stopped="")
        service.vault.keep(sweep.id, secrets)
        service.sweeps.save(grown)
    await service.ledger.tell()
    return grown


async def extend(service: Service, sweep: Sweep, job: Job, secrets: Mapping[str, str]) -> Sweep:
    """More trials: those of the job's matrix that the sweep does not have yet, with its code and software."""
    _no_search(sweep, "start another sweep with the new values")
    if job.matrix is None or set(job.matrix.names) != set((sweep.job.matrix or job.matrix).names):
        names = ", ".join(f"`{name}`" for name in (sweep.job.matrix.names if sweep.job.matrix else ()))
        raise JobInvalid([Problem("matrix", "other parameters", f"the parameters of {sweep.name}: {names}")])
    if sweep.job.search:
        return await _draw_more(service, sweep, job, secrets)
    async with service.sweeps.growing(sweep):
        sweep = service.sweeps.now(sweep)
        wanted = await call(lambda: list(job.matrix.trials() if job.matrix else ()))
        has = {_key(trial.values) for trial in (await call(service.sweeps.table.given, sweep.id)).values()}
        new = [one for one in wanted if _key(one) not in has]
        if not new:
            raise Conflict(f"`{sweep.name}` has all of these trials already", hint=f"stoker sweep show {sweep.name}")
        if sweep.trials + len(new) > MOST_TRIALS:
            raise BadInput(f"{sweep.trials + len(new):,} trials, expected at most {MOST_TRIALS:,}")
        submission = replace(sweep.submission, job=job, secrets=secrets, store=sweep.store)
        checked = await _checked(service, submission, new)
        numbered = [Trial(sweep.id, at, one) for at, one in enumerate(new, sweep.trials + 1)]
        kept = replace(submission, secrets={})
        grown = replace(sweep, submission=kept, trials=sweep.trials + len(new))
        return await _save(service, grown, checked, numbered, new=False)


async def retry(service: Service, sweep: Sweep, secrets: Mapping[str, str]) -> list[str]:
    """A new run for each trial whose newest run has failed. Their names."""
    _no_search(sweep, "set `retries` in the job: then a failed trial is tried again before the others are compared")
    async with service.sweeps.growing(sweep):
        sweep = service.sweeps.now(sweep)
        given = await call(service.sweeps.table.given, sweep.id)
        rows = await call(service.sweeps.table.trials, sweep.id)
        failed = [row.name for row in newest(rows) if row.state is RunState.FAILED]
        if not failed:
            raise Conflict(f"no trial of `{sweep.name}` has failed", hint=f"stoker sweep show {sweep.name}")
        trials = [given[name] for name in failed]
        submission = replace(sweep.submission, secrets=secrets, store=sweep.store)
        checked = await _checked(service, submission, [trial.values for trial in trials])
        again = {trial.number: name for trial, name in zip(trials, failed, strict=True)}
        before = {row.id for row in rows}
        await _save(service, sweep, checked, trials, new=False, again=again)
        return [row.name for row in await call(service.sweeps.table.trials, sweep.id) if row.id not in before]


async def set_budget(service: Service, sweep: Sweep, usd: Decimal | None) -> Sweep:
    """What all trials together may cost; None: no budget. Trials that are paused start again if that is enough."""
    now = service.clock.now()
    async with service.ledger.lock:
        changed = replace(service.sweeps.now(sweep), budget=usd)
        service.sweeps.save(changed)
        mine = [run for run in service.ledger.open if run.trial and run.trial.sweep == sweep.id]
        paused = [run for run in mine if run.state is RunState.PAUSED]
        again = [replace(run, state=RunState.QUEUED, reason="", cause="", hint="") for run in paused]
        text = f"the budget of {sweep.name} is {dollars(usd)}" if usd is not None else "the budget was removed"
        await service.ledger.save([Decision(run).noting(now, "budget", text) for run in again])
    service.reconciler.wake()
    return changed


async def cancel(service: Service, sweep: Sweep) -> int:
    """Every trial that has not ended is told to. How many."""
    now = service.clock.now()
    async with service.ledger.lock:
        service.sweeps.save(replace(service.sweeps.now(sweep), cancelled=True))
        mine = [run for run in service.ledger.open if run.trial and run.trial.sweep == sweep.id]
        service.vault.forget(sweep.id)
        told = [decision.cancelled(run, now) for run in mine if not run.state.ended]
        changed = [one for one in told if one.events]
        await service.ledger.save(changed)
    service.reconciler.wake()
    return len(told)


def _no_search(sweep: Sweep, hint: str) -> None:
    if sweep.job.search and not sweep.job.search.draws:
        raise Conflict(f"`{sweep.name}` is a search, which compares all of its trials with each other", hint=hint)


def newest(rows: Sequence[TrialRow]) -> list[TrialRow]:
    """The newest run of each trial, in the order of the trials."""
    found = {row.trial: row for row in rows}
    return [found[number] for number in sorted(found)]


async def _checked(service: Service, submission: Submission, values: Sequence[Values]) -> CheckedSubmission:
    """Trials that differ in no more than their values are checked once."""
    first = template(submission.job)
    kinds, names = dict[str, Job](), places(first)  # a provider may refuse what these say
    for one in values if names else values[:1]:
        job = trial_job(first, one)
        kinds.setdefault(_where(job, names), job)
    found = []
    for job in kinds.values():
        whole = replace(job, budget=submission.job.budget)  # the budget must pay for at least one trial
        found.append(await check(service, replace(submission, job=whole, terminal=None)))
    return found[0]


async def _save(
    service: Service,
    sweep: Sweep,
    checked: CheckedSubmission,
    trials: Sequence[Trial],
    *,
    new: bool,
    again: Mapping[int, str] | None = None,
    drawn: bool = False,
) -> Sweep:
    """`again`: by number of the trial, which run it repeats. `drawn`: nobody asked for these, so a sweep that was
    cancelled meanwhile does not get them."""
    async with arriving(service, checked):
        now = service.clock.now()
        runs = await _made(service, sweep, checked, trials, now)
        if again:
            runs = [replace(run, rerun_of=again[run.trial.number]) for run in runs if run.trial]
        secrets = checked.submission.secrets
        for run in runs if secrets else ():
            service.vault.keep(run.id, secrets)
        saved: list[Sweep] = []

        def save() -> list[Run]:
            if drawn and service.sweeps.now(sweep).cancelled:
                saved.append(service.sweeps.now(sweep))
                return []
            kept, added = service.sweeps.table.add(sweep if new else grown(), runs, _told(sweep, now), new=new)
            saved.append(kept)
            return added

        def grown() -> Sweep:
            """Its budget may have changed meanwhile."""
            known = service.sweeps.now(sweep)
            known = replace(known, trials=sweep.trials)
            return known if drawn else replace(known, submission=sweep.submission, cancelled=False, stopped="")

        added = await service.ledger.add_all(save)
        for run in runs if secrets and not added else ():  # the submission was known
            service.vault.forget(run.id)
        service.sweeps.keep(saved[0])
        if not saved[0].due:
            service.vault.forget(sweep.id)
        elif not drawn:  # for those that are drawn later
            service.vault.keep(saved[0].id, secrets)
    service.reconciler.wake()
    return saved[0]


async def _made(
    service: Service, sweep: Sweep, checked: CheckedSubmission, trials: Sequence[Trial], now: datetime
) -> list[Run]:
    submission = checked.submission
    first = template(replace_matrix(submission.job, sweep.job))
    base = replace(new_run(submission, checked.store, now), pool=checked.pool, budget=None, name="")
    runs = await call(lambda: list(_alike(base, first, trials)))
    kinds, names = dict[str, Pinned](), [name for name in places(first) if name == "data"]
    for run in runs:
        if (key := _where(run.job, names)) not in kinds:
            kinds[key] = await call(pinned_inputs, service, run.job, run.id, checked.store, submission.pins)
    if any(one.listings for one in kinds.values()):
        runs = [await _listed(service, run, checked) for run in runs]
    elif any(one.inputs for one in kinds.values()):
        runs = [replace(run, inputs=kinds[_where(run.job, names)].inputs) for run in runs]
    await call(service.accesses.check, runs[0])
    return runs


def replace_matrix(placed: Job, given: Job) -> Job:
    """The job as its cluster runs it, with the texts in which the values of trials are filled in."""
    names = {"run", "resume", "env", "matrix", "max_parallel", *varying(given)}
    return replace(placed, **{name: getattr(given, name) for name in names})


def _where(job: Job, names: Sequence[str]) -> str:
    """Equal for trials that are alike in these fields."""
    return repr([getattr(job, name) for name in names])


async def _listed(service: Service, run: Run, checked: CheckedSubmission) -> Run:
    """With a listing of its own of what a URL names: it is removed together with the run."""
    pins = checked.submission.pins
    pinned = await call(pinned_inputs, service, run.job, run.id, checked.store, pins)
    for key, listing in pinned.listings.items():
        await call((await service.stores.reach(checked.store)).put, key, listing)
    return replace(run, inputs=pinned.inputs)


def _alike(base: Run, first: Job, trials: Sequence[Trial]) -> Iterator[Run]:
    """Their ids sort in the order of the trials."""
    moment, start = base.id[:12], int.from_bytes(os.urandom(4)) >> 1
    for at, trial in enumerate(trials):
        yield replace(base, id=f"{moment}{start + at:08x}", job=trial_job(first, trial.values), trial=trial)


def _told(sweep: Sweep, now: datetime) -> Callable[[Run], Event]:
    by = f" by {sweep.submission.person}" if sweep.submission.person else ""

    def event(run: Run) -> Event:
        trial = run.trial
        values = ", ".join(f"{name}={text}" for name, text in trial.values.items()) if trial else ""
        again = f", a retry of {run.rerun_of}" if run.rerun_of else ""
        return Event(now, "submitted", f"submitted{by} as trial {trial.number if trial else 0}{again}: {values}")

    return event


def _key(values: Values) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(values.items()))

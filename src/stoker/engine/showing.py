"""A run in words: what it waits for, its agent's last report, and what happens while the server's computer is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from stoker.engine.looking import Heard
from stoker.engine.money.fuse import dollars
from stoker.engine.money.receipt import with_effort
from stoker.engine.money.spending import name
from stoker.engine.nodes.lease import longest
from stoker.errors import StokerError, StoreFailed
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.node import Features
from stoker.model.run.money import Limit
from stoker.model.run.report import MetricSummary, Phase, Report, joined_metrics
from stoker.model.run.run import Run, RunState
from stoker.model.workspace.store import is_twin, original

SILENT_S = 10.0  # an agent that is silent for longer than this, and for several heartbeats, has a problem
_BEATS = 5


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known besides the saved facts of a run."""

    heard: Heard = field(default_factory=Heard)  # of the newest attempt's node
    offers: StokerError | None = None  # why its provider cannot list its offers
    looks: StokerError | None = None  # why its provider cannot list its nodes
    waits: str = ""  # why a queued run has not started
    waits_cause: str = ""  # the same for programs
    copying: str = ""  # the name of the run whose checkpoint is being copied for it
    store: str = ""  # why its store failed
    beat_s: float = 2.0  # between two heartbeats of its agent
    silence: str = ""  # why its agent is silent, where that is known
    peers: tuple[Report, ...] = ()  # of the other nodes of its gang, in their order


def is_silent(heard: Heard, beat_s: float) -> bool:
    return heard.silent_s > max(SILENT_S, _BEATS * beat_s)


def shown(run: Run, beside: Beside) -> Run:
    """The run as it is now. The database gets the metrics when the run has ended."""
    if run.state is RunState.QUEUED and beside.offers:
        return replace(run, reason=beside.offers.message, cause=beside.offers.code, hint=beside.offers.hint)
    if run.state is RunState.QUEUED and (beside.waits or not run.reason):
        reason = "; ".join(filter(None, (run.reason, beside.waits)))
        return replace(run, reason=reason, cause=run.cause or beside.waits_cause)
    if beside.copying:
        return replace(run, reason=f"copying the checkpoint of {beside.copying}", cause=Cause.COPYING)
    if run.state.ended:
        return run
    if looks := beside.looks:
        reason = f"{looks.message}; the state of its node is unknown until then"
        run = replace(run, reason=reason, cause=looks.code, hint=looks.hint)
    if trouble := beside.store or beside.heard.trouble:
        if away := beside.offers:  # an unavailable cloud says more than its store
            return replace(run, reason=away.message, cause=away.code, hint=away.hint)
        return replace(run, reason=f"its store failed: {trouble}", cause=StoreFailed.code)
    if beside.heard.report is None:
        return run
    return _with_report(run, beside.heard.report, beside)


def _with_report(run: Run, report: Report, beside: Beside) -> Run:
    reason, cause = run.reason, run.cause
    if is_silent(beside.heard, beside.beat_s):
        reason, cause = f"no heartbeat from its agent for {beside.heard.silent_s:.0f} s{beside.silence}", Cause.SILENT
    if report.phase is Phase.STAGING and not reason:
        reason, cause = _staging(report), Cause.STAGING
    hang = run.attempt.hang if run.attempt else None
    if hang and hang.over_at is None and not reason:
        reason, cause = hang.text, Cause.HUNG
    run = with_effort(run.with_software(report), report, under_way=True)
    over = run.attempt is None or run.attempt.state.over  # then what it measured is among the run's already
    metrics = run.metrics if over else joined_metrics(run.metrics, _measured(report, beside))
    run = replace(run, metrics=metrics, data_figures=report.data)
    return replace(run, reason=reason, cause=cause)


def _measured(report: Report, beside: Beside) -> dict[str, MetricSummary]:
    """The metrics of all nodes; if several report the same metric, that of the first one counts."""
    return {name: one for said in (*reversed(beside.peers), report) for name, one in said.metrics.items()}


def _staging(report: Report) -> str:
    """The progress of the data download, in tenths: a follower gets a line for each."""
    read = sum(one.read_bytes for one in report.data.values())
    total = sum(one.size_bytes - one.cached_bytes for one in report.data.values())
    if total <= 0:
        return "downloading its data"
    return f"downloading its data: {min(10 * read // total, 10)}0 % of {total / 1e6:,.0f} MB"


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def when_alone(
    job: Job,
    features: Features,
    budget: Decimal | None,
    state: RunState | None = None,
    *,
    limits: Sequence[Limit] = (),
) -> str:
    """`state` is that of the run; None: it is only planned. `limits` are those that apply. Empty for a run that has
    ended."""
    if state and state.ended:
        return ""
    if is_twin(job.on):
        there = f"on `{original(job.on)}`, it would continue until it ends{_at_most(job, features, budget, limits)}"
        return f"The twin is on this computer: if it sleeps, the run pauses, and continues when it wakes ({there})."
    if features.shares_files and not features.lease_s and not features.elsewhere:
        return "The run stops while this computer sleeps, and continues when it wakes."
    if state in (RunState.QUEUED, RunState.PAUSED, RunState.STARTING, None):
        begin = "Once the run is running, you can close this computer: it continues"
    else:
        begin = "You can close this computer: the run continues"
    return f"{begin} until it ends{_at_most(job, features, budget, limits)}{_evicted(job, features)}.{_retries(job)}"


def _at_most(job: Job, features: Features, budget: Decimal | None, limits: Sequence[Limit]) -> str:
    lease_s = longest(job, features, budget=budget is not None or bool(limits))
    if not lease_s:
        return ""
    bounds = [spelled(lease_s)]
    bounds += [dollars(budget)] if budget is not None else []
    whose = " and ".join(name(limit) for limit in limits)
    bounds += [f"what {whose} {'leave' if len(limits) > 1 else 'leaves'}"] if limits else []
    return f", at most {', '.join(bounds[:-1])} or {bounds[-1]}" if len(bounds) > 1 else f", at most {bounds[0]}"


def _evicted(job: Job, features: Features) -> str:
    if features.elsewhere:
        return "; if its allocation ends first, the run resumes when this computer is back"
    if not job.spot:
        return ""
    if job.most_nodes > 1:
        return "; if one of its machines is evicted, the run resumes when this computer is back"
    if features.restores:
        return f"; if its machine is evicted, `{job.on}` restores it and the run resumes"
    return "; if its machine is evicted, the run resumes when this computer is back"


def _retries(job: Job) -> str:
    return " A retry after the script's own failure waits for this computer." if job.retries else ""


def spelled(seconds: float) -> str:
    """`24 h`, `90 min`, `5 d`: the largest unit that is precise enough."""
    for size, unit in _UNITS:
        if seconds >= 2 * size or size == 1:
            return f"{round(seconds / size)} {unit}"
    return ""

"""The current state of a run that is not saved: what it waits for, and its agent's last report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stoker.engine.looking import Heard
from stoker.engine.money.receipt import with_effort
from stoker.errors import StokerError
from stoker.model.run.report import MetricSummary, Phase, Report, joined_metrics
from stoker.model.run.run import Run, RunState

SILENT_S = 10.0  # an agent that is silent for longer than this, and for several heartbeats, has a problem
_BEATS = 5


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known besides the saved facts of a run."""

    heard: Heard = field(default_factory=Heard)  # of the newest attempt's node
    offers: StokerError | None = None  # why its provider cannot list its offers
    looks: StokerError | None = None  # why its provider cannot list its nodes
    waits: str = ""  # why a queued run has not started
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
        return replace(run, reason=beside.offers.message, hint=beside.offers.hint)
    if run.state is RunState.QUEUED and not run.reason:
        return replace(run, reason=beside.waits)
    if beside.copying:
        return replace(run, reason=f"copying the checkpoint of {beside.copying}")
    if run.state.ended:
        return run
    if looks := beside.looks:
        run = replace(run, reason=f"{looks.message}; the state of its node is unknown until then", hint=looks.hint)
    if trouble := beside.store or beside.heard.trouble:
        if away := beside.offers:  # an unavailable cloud says more than its store
            return replace(run, reason=away.message, hint=away.hint)
        return replace(run, reason=f"its store failed: {trouble}")
    if beside.heard.report is None:
        return run
    return _with_report(run, beside.heard.report, beside)


def _with_report(run: Run, report: Report, beside: Beside) -> Run:
    reason = run.reason
    if is_silent(beside.heard, beside.beat_s):
        reason = f"no heartbeat from its agent for {beside.heard.silent_s:.0f} s{beside.silence}"
    if report.phase is Phase.STAGING and not reason:
        reason = _staging(report)
    hang = run.attempt.hang if run.attempt else None
    if hang and hang.over_at is None and not reason:
        reason = hang.text
    run = with_effort(run, report, under_way=True)
    packages = report.packages or run.packages
    over = run.attempt is None or run.attempt.state.over  # then what it measured is among the run's already
    metrics = run.metrics if over else joined_metrics(run.metrics, _measured(report, beside))
    return replace(run, metrics=metrics, data_figures=report.data, packages=packages, reason=reason)


def _measured(report: Report, beside: Beside) -> dict[str, MetricSummary]:
    """By all nodes; of a metric that several report, the first one's counts."""
    return {name: one for said in (*reversed(beside.peers), report) for name, one in said.metrics.items()}


def _staging(report: Report) -> str:
    """The progress of the data download, in tenths: a follower gets a line for each."""
    read = sum(one.read_bytes for one in report.data.values())
    total = sum(one.size_bytes - one.cached_bytes for one in report.data.values())
    if total <= 0:
        return "downloading its data"
    return f"downloading its data: {min(10 * read // total, 10)}0 % of {total / 1e6:,.0f} MB"

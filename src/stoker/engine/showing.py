"""What is true of a run only now, for whoever asks: what it waits for, and what its agent said last."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stoker.engine.looking import Heard
from stoker.engine.money.receipt import with_effort
from stoker.errors import StokerError
from stoker.model.run.report import Phase, Report
from stoker.model.run.run import Run, RunState

SILENT_S = 10.0  # an agent that has said nothing for this long, and for as many beats as this, has a reason
_BEATS = 5


@dataclass(frozen=True, slots=True)
class Beside:
    """What is known beside the saved facts of a run."""

    heard: Heard = field(default_factory=Heard)  # of the newest attempt's node
    offers: StokerError | None = None  # why its provider cannot say what it has to offer
    looks: StokerError | None = None  # why its provider cannot be asked what it sees
    waits: str = ""  # why a queued run has not started
    copying: str = ""  # the name of the run whose checkpoint is being copied for it
    store: str = ""  # why its store cannot be used
    beat_s: float = 2.0  # between two signs of life of its agent
    silence: str = ""  # why its agent is silent, where that is known


def is_silent(heard: Heard, beat_s: float) -> bool:
    return heard.silent_s > max(SILENT_S, _BEATS * beat_s)


def shown(run: Run, beside: Beside) -> Run:
    """The run as it is now. The database learns of metrics when the run has ended."""
    if run.state is RunState.QUEUED and beside.offers:
        return replace(run, reason=beside.offers.message, hint=beside.offers.hint)
    if run.state is RunState.QUEUED and not run.reason:
        return replace(run, reason=beside.waits)
    if beside.copying:
        return replace(run, reason=f"copies the checkpoint of {beside.copying}")
    if run.state.ended:
        return run
    if looks := beside.looks:
        run = replace(run, reason=f"{looks.message}; until then nobody can see its node", hint=looks.hint)
    if trouble := beside.store or beside.heard.trouble:
        if away := beside.offers:  # a cloud that is away says more than its store
            return replace(run, reason=away.message, hint=away.hint)
        return replace(run, reason=f"its store cannot be used: {trouble}")
    if beside.heard.report is None:
        return run
    return _with_report(run, beside.heard.report, beside)


def _with_report(run: Run, report: Report, beside: Beside) -> Run:
    reason = run.reason
    if is_silent(beside.heard, beside.beat_s):
        reason = f"no heartbeat from its agent for {beside.heard.silent_s:.0f} s{beside.silence}"
    if report.phase is Phase.STAGING and not reason:
        reason = _staging(report)
    run = with_effort(run, report, under_way=True)
    packages = report.packages or run.packages
    return replace(run, metrics=report.metrics, data_figures=report.data, packages=packages, reason=reason)


def _staging(report: Report) -> str:
    """How far the data has come, in tenths: whoever follows the run gets a line for each."""
    read = sum(one.read_bytes for one in report.data.values())
    total = sum(one.size_bytes - one.cached_bytes for one in report.data.values())
    if total <= 0:
        return "brings its data"
    return f"brings its data: {min(10 * read // total, 10)}0 % of {total / 1e6:,.0f} MB"

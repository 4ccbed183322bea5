"""What happens to a run while the server's computer is off, as text derived from the facts."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from stoker.engine.money.fuse import dollars
from stoker.engine.money.limits import name
from stoker.engine.nodes.lease import longest
from stoker.model.job.job import Job
from stoker.model.node.node import Features
from stoker.model.run.money import Limit
from stoker.model.run.run import RunState
from stoker.model.workspace.store import is_twin, original

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def words(
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
    if features.shares_files and not features.lease_s:
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
    if not job.spot:
        return ""
    if job.nodes > 1:
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

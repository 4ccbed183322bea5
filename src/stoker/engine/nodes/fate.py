"""How a node ended without a final report: gone, silent, or never started."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stoker.engine.money import meter
from stoker.engine.nodes.resuming import RESTART_S
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeState
from stoker.model.node.orders import Wish
from stoker.model.run.run import Member, Run

MUTE_S = 1200.0  # from the request for a node to its agent's first report: a slower machine never reports
REFUSED_S = 30.0  # a node with unusable reports for longer than this is lost: agents repair theirs in a heartbeat


@dataclass(frozen=True, slots=True)
class Fate:
    why: str = ""  # empty if the node was evicted
    evicted: bool = False
    trouble: str = ""  # the code of the error that ended it
    hint: str = ""
    stop: bool = False  # it may still exist: it has to be released


def gone(attempt: Member, seen: Sighting) -> Fate | None:
    """For a node that could not be started, or is gone. None: it may exist."""
    if seen.trouble:
        return Fate(f"the node could not be started: {seen.trouble}", trouble=seen.trouble_code, hint=seen.trouble_hint)
    if not seen.node or seen.node.state is not NodeState.GONE:
        return None
    if attempt.notice or seen.node.taken:  # sometimes earlier than announced, or without notice
        return Fate(evicted=True)
    if seen.refused and not seen.node.trouble:
        return Fate(unusable(seen.refused))
    return Fate(seen.node.reason or "its node disappeared", trouble=seen.node.trouble)


def missed(run: Run, attempt: Member, seen: Sighting, now: datetime) -> Fate | None:
    """For a node that should exist and does not report. None: it works, or is still starting."""
    restarts = attempt.notice is not None and attempt.notice.returns  # it returns in a moment
    if attempt.notice and not restarts and now >= attempt.notice.deadline:
        return Fate(evicted=True, stop=True)
    if seen.silent_s > max(seen.patience_s, RESTART_S if restarts else 0.0):
        return Fate(f"no heartbeat from its node for {seen.silent_s:.0f} s")
    if seen.refused and seen.refused_s > REFUSED_S:
        return Fate(unusable(seen.refused), stop=True)
    if seen.node and not seen.report and is_unasked(run, attempt, seen):
        return None
    if seen.node and not seen.report and not seen.deaf and (now - attempt.asked_at).total_seconds() > MUTE_S:
        return Fate(f"its node ran for {MUTE_S / 60:.0f} minutes and never reported")
    if seen.node is None and ((seen.report and not seen.unmarked) or run.wish is Wish.CANCEL):
        # A list may omit existing nodes: requesting the release costs nothing, and it cannot continue.
        return Fate("its node no longer exists", stop=True)
    disappeared = seen.node is None and not seen.unmarked and meter.was_there(run, attempt.key)
    if disappeared and not (run.attempt and run.attempt.fused):
        # A second node with its key would be billed without need.
        return Fate("its node disappeared before its first report", stop=True)
    return None


def is_unasked(run: Run, attempt: Member, seen: Sighting) -> bool:
    """It was requested in advance, and its orders could not be written: it waits for them."""
    return attempt.key in seen.unasked and run.wish is Wish.GO_ON


def unusable(why: str) -> str:
    return f"its node's report is invalid: {why}"

"""What a run waits for without limit, and what ends it: one table, which the docs repeat word for word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

from stoker.model.cause import Cause
from stoker.model.run.report import Outcome, Report
from stoker.model.run.run import Attempt, AttemptState, Run

MOST_LOST = 5  # in a row: a run whose nodes keep vanishing does not get anywhere
MOST_CLOSED = 12  # different offers: whatever all of these were refused for is not about the offer
MOST_REFUSED = 2  # in a row: the cause of an invalid report is likely to recur
MOST_UNREADY = 2  # of one size, before the script has ever run: the next one lacks the same, and each is billed
MOST_HASTY = 100  # in a row: a script can fake any number of evictions and checkpoints
HASTY_S = 60.0  # after a node was requested
MOST_USED_UP = 3  # in a row: each began where the last one did, and had as long
USED_UP = 0.7  # of a time limit: less was an eviction
NO_LIMIT = "no limit"


@dataclass(frozen=True, slots=True)
class Rule:
    happens: str
    then: str  # the run's reaction
    limit: str = NO_LIMIT
    codes: tuple[str, ...] = ()  # of the errors that it is about


EVICTED = Rule(
    "the machine is evicted, restarted or removed by its owner, with or without notice",
    "resumes from its last checkpoint on another machine",
)
MOVED = Rule("Stoker moves the run, to spot or to on-demand", "resumes from its last checkpoint on another machine")
AWAY = Rule(
    "the server is away, or the cloud or the store cannot be reached",
    "waits; what already runs continues",
)
MARKET = Rule(
    "no capacity, a spot price above `max_price`, the quota is used up, or the cloud asks for fewer requests",
    "tries other sizes, regions or on-demand as the job allows, and the same again after 30 s, then up to 5 minutes",
    codes=("no-capacity", "price-too-high", "quota-reached", "provider-unavailable"),
)
LOGIN = Rule(
    "the login or the store's credential has expired, was replaced or is refused",
    "waits until somebody logs in or gives a new one, and then continues by itself",
    codes=("login-failed", "store-denied", "store-unavailable", "store-failed", "store-no-container"),
)
SET_UP = Rule(
    "the cloud account lacks a right or a part of its set-up, or a name is taken, after the script has run once",
    "waits until somebody repairs it, and then continues by itself",
    codes=("not-allowed", "not-set-up", "name-taken"),
)
NOT_SET_UP = Rule(
    "the same, before the script has ever run",
    "fails, so that whoever submitted it sees it",
    limit="at once",
    codes=SET_UP.codes,
)
NOT_STARTED = Rule(
    "a machine cannot be started for any other reason, after the script has run once",
    "tries other sizes and regions, and the same again after up to 5 minutes",
)
CLOSED = Rule(
    "a first machine is refused for a reason of the cloud's own, whatever its code",
    "takes another size or region, and this one only if there is no other",
    limit=f"{MOST_CLOSED} different ones in a row",
)
LOST = Rule(
    "a node is lost (no heartbeat, or its agent was killed), or the same first machine cannot be started",
    "resumes from its last checkpoint on another machine",
    limit=f"{MOST_LOST} in a row without a new checkpoint",
)
UNREADY = Rule(
    "a machine does not get ready for the script, such as one whose GPU driver is missing",
    "takes another size, and this one only if there is no other",
    limit=f"{MOST_LOST} in a row; {MOST_UNREADY} of one size before the script has ever run",
    codes=("machine-not-ready",),
)
REFUSED = Rule(
    "a node's reports cannot be used",
    "resumes from its last checkpoint on another machine",
    limit=f"{MOST_REFUSED} in a row without a new checkpoint",
)
HASTY = Rule(
    "a node is lost, or says that it is evicted, within a minute of being asked for",
    "resumes from its last checkpoint on another machine",
    limit=f"{MOST_HASTY} in a row",
)
USELESS = Rule(
    "a node reaches the time limit of its allocation without a new checkpoint",
    "starts again in the next allocation",
    limit=f"{MOST_USED_UP} in a row",
)
SCRIPT = Rule("the script fails", "tries again from its last checkpoint", limit="the job's `retries`, in the whole run")
PREPARING = Rule(
    "the run cannot be prepared: a requirement that cannot be installed, or a Python that is missing",
    "fails",
    limit="at once",
)
TIME = Rule("the script reaches its `time_limit`", "fails", limit="at once")
REBUILT = Rule("the database was rebuilt from records while the run had no node", "fails", limit="at once")
DEFECT = Rule("Stoker fails to decide about the run: a defect", "fails", limit="after a minute")
BUDGET = Rule("the budget is spent", "saves and is paused until the budget is raised")

TABLE = (
    EVICTED,
    MOVED,
    AWAY,
    MARKET,
    LOGIN,
    SET_UP,
    NOT_SET_UP,
    NOT_STARTED,
    CLOSED,
    LOST,
    UNREADY,
    REFUSED,
    HASTY,
    USELESS,
    SCRIPT,
    PREPARING,
    TIME,
    REBUILT,
    DEFECT,
    BUDGET,
)

WEATHER = (*MARKET.codes, *LOGIN.codes)  # count neither as losses nor as failures
ROOM = ("no-capacity", "quota-reached")  # of those, the ones that fewer nodes may not meet
HOPELESS = NOT_SET_UP.codes  # a person has to act: a retry changes nothing
NOT_READY = UNREADY.codes[0]
WAITED_FOR = (*LOGIN.codes, *SET_UP.codes)  # the same for every size and place: only a person can change it


@dataclass(frozen=True, slots=True)
class Final:
    """Why a run is not retried."""

    words: str
    cause: str


def verdict(run: Run, why: str) -> Final | None:
    """Why the run ends after its newest attempt, which did not end because of the script; None: it is retried."""
    newest = run.attempts[-1]
    if newest.trouble in WEATHER:
        return None
    if newest.trouble and newest.trouble != NOT_READY and has_run(run):
        return None
    if newest.trouble in HOPELESS:
        return Final(why, newest.trouble)
    if too_hasty := haste(run):
        return Final(too_hasty, Cause.ENDED_AT_ONCE)
    if why_not := _never_ready(run, why):
        return Final(why_not, NOT_READY)
    row = [one for one in without_progress(run) if was_lost(one)]
    if sum(bool(one.refused) for one in row) >= MOST_REFUSED:
        text = f"{why}; {MOST_REFUSED} attempts in a row ended like this, without a new checkpoint"
        return Final(text, Cause.REPORT_UNUSABLE)
    if (closed := len(_refused_offers(row))) >= MOST_CLOSED:
        return Final(f"{why}; {closed} sizes and regions were refused in a row", Cause.REFUSED_TOO_OFTEN)
    if tries(row) >= MOST_LOST:
        text = f"{why}; {len(row)} attempts in a row were lost, without a new checkpoint"
        return Final(text, Cause.LOST_TOO_OFTEN)
    return None


def tries(row: Sequence[Attempt]) -> int:
    """How many of these failed: the refusal of other offers says nothing about this one, unless they are
    many."""
    others = max(len(_refused_offers(row)) - 1, 0)
    return len(row) - min(others, MOST_CLOSED)


def _refused_offers(row: Sequence[Attempt]) -> set[tuple[str, str, bool]]:
    """What the provider did not start, of these attempts, for a reason that may be about the offer."""
    others = (*WEATHER, *HOPELESS, NOT_READY, "")
    refused = (one.offer for attempt in row for one in attempt.troubled if one.trouble not in others)
    return {(offer.size, offer.place, offer.spot) for offer in refused if offer}


def _never_ready(run: Run, why: str) -> str:
    """Why a run ends whose size cannot run it; empty: it does not."""
    newest = run.attempts[-1]
    if newest.trouble != NOT_READY or newest.offer is None or has_run(run):
        return ""
    size = newest.offer.size
    alike = sum(one.trouble == NOT_READY and one.offer is not None and one.offer.size == size for one in run.attempts)
    return f"{why}; {alike} machines of size {size} did not get ready" if alike >= MOST_UNREADY else ""


def haste(run: Run) -> str:
    """Why a run ends whose nodes end right after their start, if only they themselves say why; empty: it does not."""
    row = list(takewhile(_is_hasty, islice(reversed(run.attempts), MOST_HASTY)))
    if len(row) < MOST_HASTY:
        return ""
    return f"its nodes ended {MOST_HASTY} times in a row within a minute of their request"


def used_up(run: Run) -> str:
    """Why a run ends whose allocations are too short to get anywhere; empty: it does not."""
    row = list(islice(takewhile(_is_used_up, without_progress(run)), MOST_USED_UP))
    if len(row) < MOST_USED_UP:
        return ""
    return f"{MOST_USED_UP} allocations in a row reached their time limit without a new checkpoint"


def _is_used_up(one: Attempt) -> bool:
    limit_s = one.offer.limit_s if one.offer else 0.0
    if not limit_s or not one.ended_at or one.moving or one.leaves:
        return False
    return (one.ended_at - one.asked_at).total_seconds() >= limit_s * USED_UP


def _is_hasty(one: Attempt) -> bool:
    drilled = one.moving or one.leaves or (one.notice is not None and one.notice.drill)
    if drilled or not one.ended_at or not (one.outcome is Outcome.EVICTED or was_lost(one)):
        return False
    return (one.ended_at - one.asked_at).total_seconds() <= HASTY_S


def has_run(run: Run) -> bool:
    """The script has started once, so whatever is wrong now was right then."""
    return any(one.started_at for one in run.attempts)


def without_progress(run: Run) -> Iterator[Attempt]:
    """The newest attempts, newest first, back to the last one that has committed a checkpoint."""
    return takewhile(lambda one: not one.saved, reversed(run.attempts))


def was_lost(attempt: Attempt) -> bool:
    if attempt.trouble in (*WEATHER, *WAITED_FOR):
        return False
    return attempt.state is AttemptState.LOST or attempt.outcome in (Outcome.CANCELLED, Outcome.NOT_READY)


def saves_in(report: Report) -> set[int]:
    """Numbers of attempts that have committed a checkpoint, as a report shows it: its own, and the one it resumed from,
    whose node may not have reported it."""
    effort = report.effort
    kept = (effort.kept, effort.began_from) if effort else ()
    return {one.attempt for one in kept if one}

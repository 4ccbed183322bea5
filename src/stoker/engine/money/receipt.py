"""How a run spent its money and time, from its facts alone. Whole microseconds and billionths of a dollar are
distributed, so that nothing is lost or counted twice.

A node's time is one line: provisioning, then the phases that its agent counted, then idle. Each piece of the line costs
what the spells below it cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from stoker.engine.money.lineage import Loss, losses, steps_lost, unheard_s
from stoker.engine.money.meter import NANO, cost, rate
from stoker.engine.nodes.lease import node_of
from stoker.model.run.money import Spell
from stoker.model.run.receipt import Part, Receipt, Share, Stay, Taken, total
from stoker.model.run.report import Effort, Phase, Report, joined_metrics
from stoker.model.run.run import Attempt, AttemptState, Member, Run

_TAKEN = (AttemptState.EVICTED, AttemptState.LOST, AttemptState.MOVED)
_US = timedelta(microseconds=1)
_SECOND = Decimal("0.000001")
Line = list[tuple[Part, int]]  # what a node did, piece by piece, in microseconds


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A spell as it counts: so many microseconds for so many billionths of a dollar."""

    us: int
    nano_usd: int


def receipt(run: Run, now: datetime) -> Receipt:
    lost = losses(run)
    attempts = {part.key: part for part in run.members}
    stays = tuple(
        _stay(attempts.get(key), spells, lost, now) for key, spells in _by_node(run, now) if _length(spells, now)
    )
    parts: dict[str, Share] = {part: total(stay.parts[part] for stay in stays) for part in Part}
    return Receipt(
        run=run.name,
        state=str(run.state),
        as_of=now,
        final=run.state.ended and not run.costing,
        parts=parts,
        stays=stays,
        taken=tuple(_taken(run, stays, lost)),
        usd_per_hour=rate(run),
        undisturbed_usd=_undisturbed(run, stays),
        budget=run.budget,
        priced_at=_priced_at(run),
        notes=tuple(_notes(run)),
    )


def with_effort(run: Run, report: Report | None, *, under_way: bool = False) -> Run:
    """An attempt that has ended keeps its agent's last account of its time. Repeating it changes nothing. With
    `under_way` also an active one, for its current state."""
    attempt = run.attempt
    if not attempt or not report or not report.effort or report.attempt != attempt.number:
        return run
    part = next((one for one in attempt.members if one.node == report.node), None)
    if part is None or part.effort or (not attempt.state.over and not under_way):
        return run
    if attempt.state.over and attempt.outcome is None:  # it was lost: nothing of its report is saved
        run = replace(run, metrics=joined_metrics(run.metrics, report.metrics))
    return run.with_member(replace(part, effort=report.effort))


def _by_node(run: Run, now: datetime) -> Iterator[tuple[str, Sequence[Spell]]]:
    """Nodes with their spells. Free nodes exist from their request to their end."""
    if run.spells:
        keys = dict.fromkeys(spell.key for spell in run.spells)
        for key in keys:
            yield key, [spell for spell in run.spells if spell.key == key]
        return
    for part in run.members:
        ended = part.ended_at or (now if not part.state.over else part.asked_at)
        yield part.key, [Spell(part.key, part.asked_at, max(ended, part.asked_at), Decimal(0))]


def _length(spells: Sequence[Spell], now: datetime) -> int:
    return sum(_us(spell, now) for spell in spells)


def _us(spell: Spell, now: datetime) -> int:
    return max(((spell.until or now) - spell.since) // _US, 0)


def _stay(attempt: Member | None, spells: Sequence[Spell], lost: Mapping[int, Loss], now: datetime) -> Stay:
    stretches = [_Stretch(_us(spell, now), int(cost(spell, now) / NANO)) for spell in spells]
    length = sum(one.us for one in stretches)
    if attempt is None:  # requested before an eviction that did not happen
        line: Line = [(Part.IDLE, length)]
    else:
        loss = lost.get(attempt.number, Loss())
        line = _cut(list(_line(attempt, loss, spells[0].since, length, now)), length)
    offer = attempt.offer if attempt else None
    return Stay(
        attempt=attempt.number if attempt else node_of(spells[0].key)[1],
        since=spells[0].since,
        until=spells[-1].until,
        parts=_priced(line, stretches),
        size=offer.size if offer else "",
        place=offer.place if offer else "",
        spot=bool(offer and offer.spot),
    )


def _line(attempt: Member, loss: Loss, since: datetime, length: int, now: datetime) -> Iterator[tuple[Part, int]]:
    """What the node did, in order. It may be longer or shorter than what was billed: `_cut` fits it."""
    effort = attempt.effort or _supposed(attempt, now)
    if effort is None:
        yield Part.PROVISIONING, length
        return
    counted, unheard = _in_us(effort.counted_s), _in_us(_tail_s(attempt, effort, now))
    first_word = (effort.at - since) // _US - counted  # as far as the two clocks agree
    waiting = min(max(first_word, 0), max(length - counted, 0))
    tail = min(unheard, max(length - counted - waiting, 0))  # it may have been gone a while before it was missed
    loss = replace(loss, seconds=max(loss.seconds - (unheard - tail) / 1e6, 0.0))
    yield Part.PROVISIONING, waiting
    current = list(effort.phases)[-1] if effort.phases else ""
    for phase, seconds in effort.phases.items():
        spent = _in_us(seconds) + (tail if phase == current else 0)
        yield from _pieces(phase, spent, effort, loss)
    yield Part.IDLE, max(length - waiting - counted - tail, 0)


def _supposed(attempt: Member, now: datetime) -> Effort | None:
    """For an agent that never reported its time, what the server observed: when the script started, and ended."""
    if attempt.started_at is None:
        return None
    until = max(attempt.ended_at or now, attempt.started_at)
    return Effort(until, {Phase.RUNNING: (until - attempt.started_at).total_seconds()})


def _tail_s(attempt: Member, effort: Effort, now: datetime) -> float:
    """What has passed since the agent last counted: nothing after its final report."""
    if not attempt.state.over:
        return max((now - effort.at).total_seconds(), 0.0)
    return unheard_s(attempt)


def _pieces(phase: str, us: int, effort: Effort, loss: Loss) -> Iterator[tuple[Part, int]]:
    if phase == Phase.RUNNING:
        yield from _work(us, effort, loss)
    elif phase == Phase.UNPACKING:
        restored = min(_in_us(effort.restored_s), us)
        yield from ((Part.SETUP, us - restored), (Part.CHECKPOINT, restored))
    else:
        yield {Phase.PREPARING: Part.SETUP}.get(Phase(phase), Part.DATA), us


def _work(us: int, effort: Effort, loss: Loss) -> Iterator[tuple[Part, int]]:
    """The end of it is what was lost. Waits are spread evenly, and those in the lost part are lost with it."""
    redone = min(us, _in_us(min(loss.seconds, us / 1e6)))
    kept = us - redone
    blocked = min(_in_us(effort.blocked_s) * kept // us if us else 0, kept)
    waited = min(_in_us(effort.waited_s) * kept // us if us else 0, kept - blocked)
    yield Part.USEFUL, kept - blocked - waited
    yield Part.CHECKPOINT, blocked
    yield Part.DATA, waited
    yield Part.REDONE, redone


def _cut(line: Line, length: int) -> Line:
    """The line fitted to what was billed: an excess is cut at the end, a gap was idle."""
    after: Line = []
    left = length
    for part, us in line:
        after.append((part, min(us, left)))
        left -= after[-1][1]
    return [*after, (Part.IDLE, left)]


def _priced(line: Line, stretches: Sequence[_Stretch]) -> dict[str, Share]:
    """Each piece costs its share of the intervals it overlaps; the rest from rounding goes to the longest."""
    us, nano = dict.fromkeys(Part, 0), dict.fromkeys(Part, 0)
    waiting = [one for one in stretches if one.us]
    at = 0  # how far the first of those that wait is used up
    for part, piece in line:
        us[part] += piece
        while piece > 0:
            step = min(piece, waiting[0].us - at)
            nano[part] += waiting[0].nano_usd * step // waiting[0].us
            piece, at = piece - step, at + step
            if at == waiting[0].us:
                waiting, at = waiting[1:], 0
    longest = max(Part, key=lambda part: us[part])
    nano[longest] += sum(one.nano_usd for one in stretches) - sum(nano.values())
    return {part: Share(us[part] * _SECOND, nano[part] * NANO if nano[part] else Decimal(0)) for part in Part}


def _taken(run: Run, stays: Sequence[Stay], lost: Mapping[int, Loss]) -> Iterator[Taken]:
    numbers = {stay.attempt for stay in stays}
    redone = {number: total(one.parts[Part.REDONE] for one in stays if one.attempt == number) for number in numbers}
    for attempt in run.attempts:
        yield from _restored(attempt, redone)
        if attempt.state not in _TAKEN or attempt.ended_at is None or attempt.trouble:
            continue  # one that was unavailable was never evicted
        loss = lost.get(attempt.number, Loss())
        yield Taken(
            attempt=attempt.number,
            at=attempt.ended_at,
            how=str(attempt.state),
            notice_s=attempt.notice.seconds if attempt.notice else None,
            redone=redone.get(attempt.number, Share()),
            step=_reached(attempt, loss),
            safe_step=loss.went_on_from.step if loss.went_on_from else None,
            steps_lost=steps_lost(attempt, loss),
            again=loss.again,
        )


def _restored(attempt: Attempt, redone: Mapping[int, Share]) -> Iterator[Taken]:
    """Machines of an attempt that were evicted while no server was running. Which of them lost what is unknown: the
    last one stands for all."""
    gone_at = attempt.effort.evicted_at if attempt.effort else ()
    ends = attempt.state not in _TAKEN
    for number, at in enumerate(gone_at, 1):
        cost_it = redone.get(attempt.number, Share()) if number == len(gone_at) and ends else Share()
        yield Taken(attempt.number, at, "evicted", None, cost_it, alone=True)


def _reached(attempt: Attempt, loss: Loss) -> float | None:
    """The last step that is known to be done: a saved step was done, whatever was reported."""
    known = [attempt.effort.step if attempt.effort else None]
    known += [loss.went_on_from.step] if loss.went_on_from and loss.went_on_from.attempt == attempt.number else []
    return max((one for one in known if one is not None), default=None)


def _undisturbed(run: Run, stays: Sequence[Stay]) -> Decimal | None:
    """One start, all of the work once, one end, at the on-demand price of the first node that did something."""
    worked = [stay for stay in stays if stay.parts[Part.USEFUL].seconds or stay.parts[Part.REDONE].seconds]
    offers = {attempt.number: attempt.offer for attempt in run.attempts}
    offer = offers.get(worked[0].attempt) if worked else None
    price = (offer.on_demand_usd_per_hour if offer.spot else offer.usd_per_hour) if offer else None
    if price is None:
        return None
    start = (Part.PROVISIONING, Part.SETUP)
    once = sum((worked[0].parts[part].seconds for part in start), Decimal(0))
    once += max(stay.parts[Part.DATA].seconds for stay in worked) + worked[-1].parts[Part.IDLE].seconds
    work = sum((stay.parts[Part.USEFUL].seconds + stay.parts[Part.CHECKPOINT].seconds for stay in worked), Decimal(0))
    return ((once + work) * price / 3600).quantize(NANO)


def _priced_at(run: Run) -> datetime | None:
    known = [attempt.offer.priced_at for attempt in run.attempts if attempt.offer and attempt.offer.priced_at]
    return min(known, default=None)


def _notes(run: Run) -> Iterator[str]:
    for attempt in run.attempts:
        if attempt.started_at and attempt.state.over and attempt.effort is None:
            yield f"attempt {attempt.number} never reported how it spent its time: all of it counts as useful"
    if run.state.ended and run.costing:
        yield "one of its nodes is not confirmed as removed yet: the total may still grow slightly"


def _in_us(seconds: float) -> int:
    return max(round(seconds * 1_000_000), 0)

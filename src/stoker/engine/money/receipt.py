"""Where the money and the time of a run went, from its facts alone. Whole microseconds and billionths of a dollar are
shared out, so that nothing is lost and nothing comes twice.

A node's time is one line: provisioning, then what its agent counted, phase by phase, then being idle. Each piece of the
line costs what the spells below it cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from stoker.engine.money.lineage import Loss, losses, steps_lost, unheard_s
from stoker.engine.money.meter import NANO, cost, rate
from stoker.model.run.money import Spell
from stoker.model.run.receipt import Part, Receipt, Share, Stay, Taken, total
from stoker.model.run.report import Effort, Phase, Report, joined_metrics
from stoker.model.run.run import Attempt, AttemptState, Run

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
    attempts = {attempt.key: attempt for attempt in run.attempts}
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
    """An attempt that is over keeps what its agent last said of its time. Called again, it changes nothing. With
    `under_way` also one that is not, for whoever wants to know how it is now."""
    attempt = run.attempt
    if not attempt or attempt.effort or not report or not report.effort or report.attempt != attempt.number:
        return run
    if not attempt.state.over and not under_way:
        return run
    if attempt.state.over and attempt.outcome is None:  # it was lost: nothing of its report has been kept
        run = replace(run, metrics=joined_metrics(run.metrics, report.metrics))
    return run.with_newest(replace(attempt, effort=report.effort))


def _by_node(run: Run, now: datetime) -> Iterator[tuple[str, Sequence[Spell]]]:
    """Nodes with their spells. Those of a run whose nodes cost nothing are there from being asked for to their end."""
    if run.spells:
        keys = dict.fromkeys(spell.key for spell in run.spells)
        for key in keys:
            yield key, [spell for spell in run.spells if spell.key == key]
        return
    for attempt in run.attempts:
        ended = attempt.ended_at or (now if not attempt.state.over else attempt.asked_at)
        yield attempt.key, [Spell(attempt.key, attempt.asked_at, max(ended, attempt.asked_at), Decimal(0))]


def _length(spells: Sequence[Spell], now: datetime) -> int:
    return sum(_us(spell, now) for spell in spells)


def _us(spell: Spell, now: datetime) -> int:
    return max(((spell.until or now) - spell.since) // _US, 0)


def _stay(attempt: Attempt | None, spells: Sequence[Spell], lost: Mapping[int, Loss], now: datetime) -> Stay:
    stretches = [_Stretch(_us(spell, now), int(cost(spell, now) / NANO)) for spell in spells]
    length = sum(one.us for one in stretches)
    if attempt is None:  # asked for ahead of an eviction that did not come
        line: Line = [(Part.IDLE, length)]
    else:
        loss = lost.get(attempt.number, Loss())
        line = _cut(list(_line(attempt, loss, spells[0].since, length, now)), length)
    offer = attempt.offer if attempt else None
    return Stay(
        attempt=attempt.number if attempt else int(spells[0].key.rpartition("-")[2]),
        since=spells[0].since,
        until=spells[-1].until,
        parts=_priced(line, stretches),
        size=offer.size if offer else "",
        place=offer.place if offer else "",
        spot=bool(offer and offer.spot),
    )


def _line(attempt: Attempt, loss: Loss, since: datetime, length: int, now: datetime) -> Iterator[tuple[Part, int]]:
    """What the node did, in order. It may be longer or shorter than what was billed: `_cut` sees to that."""
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


def _supposed(attempt: Attempt, now: datetime) -> Effort | None:
    """Of an agent that never spoke of its time, what the server saw: when the script began, and when it was over."""
    if attempt.started_at is None:
        return None
    until = max(attempt.ended_at or now, attempt.started_at)
    return Effort(until, {Phase.RUNNING: (until - attempt.started_at).total_seconds()})


def _tail_s(attempt: Attempt, effort: Effort, now: datetime) -> float:
    """What has gone by since the agent last counted: nothing behind its last word."""
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
    """The end of it is what was lost. Waits are spread over all of it, those in what was lost are lost with it."""
    redone = min(us, _in_us(min(loss.seconds, us / 1e6)))
    kept = us - redone
    blocked = min(_in_us(effort.blocked_s) * kept // us if us else 0, kept)
    waited = min(_in_us(effort.waited_s) * kept // us if us else 0, kept - blocked)
    yield Part.USEFUL, kept - blocked - waited
    yield Part.CHECKPOINT, blocked
    yield Part.DATA, waited
    yield Part.REDONE, redone


def _cut(line: Line, length: int) -> Line:
    """The line in exactly what was billed: what is too long is cut off behind, what is missing was idle."""
    after: Line = []
    left = length
    for part, us in line:
        after.append((part, min(us, left)))
        left -= after[-1][1]
    return [*after, (Part.IDLE, left)]


def _priced(line: Line, stretches: Sequence[_Stretch]) -> dict[str, Share]:
    """Each piece costs its part of the stretches it lies on; what rounding leaves over goes to the longest."""
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
    redone = {stay.attempt: stay.parts[Part.REDONE] for stay in stays}
    for attempt in run.attempts:
        yield from _restored(attempt, redone)
        if attempt.state not in _TAKEN or attempt.ended_at is None or attempt.trouble:
            continue  # one that could not be had was never taken away
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
    """Machines of an attempt that were evicted while nobody was there. Which of them lost what is not known: the last
    one stands for all."""
    effort = attempt.effort
    count = effort.evictions if effort else 0
    ends = attempt.state not in _TAKEN
    for number in range(1, count + 1):
        cost_it = redone.get(attempt.number, Share()) if number == count and ends else Share()
        yield Taken(attempt.number, effort.at if effort else attempt.asked_at, "evicted", None, cost_it)


def _reached(attempt: Attempt, loss: Loss) -> float | None:
    """The last step that is known to have been done: what was saved of it was, whatever was reported."""
    known = [attempt.effort.step if attempt.effort else None]
    known += [loss.went_on_from.step] if loss.went_on_from and loss.went_on_from.attempt == attempt.number else []
    return max((one for one in known if one is not None), default=None)


def _undisturbed(run: Run, stays: Sequence[Stay]) -> Decimal | None:
    """One start, all of the work once, one end, at the price on demand of the first node that did something."""
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
            yield f"attempt {attempt.number} never said what its time went into: all of its running counts as useful"
    if run.state.ended and run.costing:
        yield "a node of it has not been seen gone yet: the sum may still grow a little"


def _in_us(seconds: float) -> int:
    return max(round(seconds * 1_000_000), 0)

"""What a run has cost, reckoned from what was seen of its nodes: never less than the cloud's own bill.

A spell begins when its node is asked for, before the cloud counts, and ends when the node is seen gone, after it has
stopped counting. Between two looks the dearer of two prices counts. Nodes that cost nothing have no spells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import ROUND_UP, Context, Decimal

from stoker.engine.patience import WEATHER
from stoker.engine.sighting import Sighting
from stoker.model.node.node import NodeSight, NodeState
from stoker.model.run.money import Spell
from stoker.model.run.run import Event, Run

MARK_S = 60.0  # how often a spell that goes on is marked as seen: what a clock that is set back can hide at most
LEAP = 100  # a price that falls to less than one part in so many is not believed; one that rises so much is, and told
NANO = Decimal("1E-9")  # costs are rounded up to this, each spell by itself, so that parts add up to the whole
_EXACT = Context(prec=60, rounding=ROUND_UP)
_HOUR_US = Decimal(3_600_000_000)


def asked(run: Run, key: str, usd_per_hour: Decimal, now: datetime) -> Run:
    """A node is about to be asked for. Nothing changes where it costs nothing, or costs already."""
    if usd_per_hour <= 0 or any(spell.key == key and spell.until is None for spell in run.spells):
        return run
    return replace(run, spells=(*run.spells, Spell(key, now, None, usd_per_hour)))


def metered(run: Run, seen: Sighting, now: datetime) -> Run:
    """The run with what was seen of its nodes taken into account. Without news it changes nothing but, once in a
    minute, the marks of what goes on."""
    sights = {sight.key: sight for sight in seen.nodes}
    if not run.spells and not any(sight.usd_per_hour > 0 for sight in seen.nodes):
        return run
    spells = [after for spell in run.spells for after in _after(spell, sights.get(spell.key), seen, run, now)]
    spells += _unmetered(run, spells, sights, now)
    return replace(run, spells=tuple(spells)) if tuple(spells) != run.spells else run


def cost(spell: Spell, now: datetime) -> Decimal:
    """In dollars, to the microsecond of time, rounded up to a billionth. Never negative: a clock may be set back."""
    until = spell.until or now
    us = max((until - spell.since) // timedelta(microseconds=1), 0)
    exact = _EXACT.divide(_EXACT.multiply(spell.usd_per_hour, Decimal(us)), _HOUR_US)
    return exact.quantize(NANO, context=_EXACT)


def spent(run: Run, now: datetime) -> Decimal:
    return sum((cost(spell, now) for spell in run.spells), Decimal(0))


def was_there(run: Run, key: str) -> bool:
    """The node was seen once, and cost something."""
    return any(spell.key == key and spell.seen_at for spell in run.spells)


def rate(run: Run) -> Decimal:
    """What an hour costs now, of all its nodes together."""
    return sum((spell.usd_per_hour for spell in run.spells if spell.until is None), Decimal(0))


def price_events(before: Run, after: Run, now: datetime) -> tuple[Event, ...]:
    """Prices that changed under a node, for the timeline."""
    was = {spell.key: spell.usd_per_hour for spell in before.spells if spell.until is None}
    fresh = [spell for spell in after.spells if spell.until is None and spell not in before.spells]
    changed = [(was[spell.key], spell.usd_per_hour) for spell in fresh if spell.key in was]
    return tuple(
        Event(now, "price", f"the price went from ${old.normalize():f} to ${new.normalize():f} an hour")
        for old, new in changed
        if old != new
    )


def _after(spell: Spell, sight: NodeSight | None, seen: Sighting, run: Run, now: datetime) -> Iterator[Spell]:
    """What a spell has become: the same, marked anew, closed, or closed and followed by the next."""
    if spell.until is not None:
        yield spell
        return
    last = spell.seen_at or spell.since
    if now < last:  # the clock was set back: since the last mark went by at most this, and a new count begins
        closed = replace(spell, until=last + timedelta(seconds=MARK_S))
        yield closed
        yield from _after(replace(spell, since=now, seen_at=now if spell.seen_at else None), sight, seen, run, now)
    elif sight is None and _is_expected(spell, run):
        moves = spell.key in seen.unasked and (now - spell.since).total_seconds() > MARK_S
        yield replace(spell, since=now) if moves else spell
    elif sight is None:
        yield replace(spell, until=_gone_by(run, spell.key, last, seen, now))
    elif sight.state is NodeState.GONE and sight.usd_per_hour <= 0:
        never = spell.seen_at is None and sight.trouble in WEATHER  # it could not be had, so nobody counted
        yield replace(spell, until=spell.since if never else _gone_by(run, spell.key, last, seen, now))
    else:
        yield from _at_price(spell, _believed(sight, spell), now)


def _at_price(spell: Spell, price: Decimal, now: datetime) -> Iterator[Spell]:
    if price == spell.usd_per_hour:
        fresh = spell.seen_at and (now - spell.seen_at).total_seconds() < MARK_S
        yield spell if fresh else replace(spell, seen_at=now)
        return
    # It changed at some moment since it was last seen: of the two prices, the dearer counts for that time.
    turn = now if price < spell.usd_per_hour else spell.seen_at or spell.since
    if turn > spell.since:
        yield replace(spell, until=turn)
    yield Spell(spell.key, turn, None, price, now)


def _believed(sight: NodeSight, spell: Spell) -> Decimal:
    """A price that is missing, or that has all but vanished, is a gap in the list: a machine that runs costs."""
    price = sight.usd_per_hour
    if sight.state is NodeState.GONE:  # what is left of it may well cost little
        return price
    return spell.usd_per_hour if price <= 0 or price * LEAP < spell.usd_per_hour else price


def _is_expected(spell: Spell, run: Run) -> bool:
    """Nothing is there yet because it has just been asked for."""
    attempt = run.attempt
    if spell.seen_at or attempt is None or run.state.ended:
        return False
    ahead = f"{run.id}-{attempt.number + 1}" if attempt.spare else ""
    return spell.key == ahead or (spell.key == attempt.key and not attempt.state.over)


def _gone_by(run: Run, key: str, last: datetime, seen: Sighting, now: datetime) -> datetime:
    """A node that is no longer there went at some moment since it was last seen: now at the latest, or, where nobody
    looked for long, when its lease was over, a while after it gave its last report, or when its budget was spent: its
    own fuse sees to that."""
    if not seen.outlives_s:
        return now
    ends = [now, last + timedelta(seconds=MARK_S + seen.outlives_s)]
    newest = run.attempt is not None and run.attempt.key == key
    if newest and seen.report and seen.report.outcome and seen.said_at:
        # As long as the server was there it may have kept it.
        ends.append(max(seen.said_at, last) + timedelta(seconds=MARK_S + seen.lingers_s))
    left = (run.budget or Decimal(0)) - spent(run, last)
    if left > 0:
        ends.append(last + timedelta(microseconds=int(left * _HOUR_US / rate(run))))
    return max(min(ends), last)


def _unmetered(run: Run, spells: list[Spell], sights: Mapping[str, NodeSight], now: datetime) -> Iterator[Spell]:
    """Nodes that are there although their spell was closed, or never opened: they cost all the while."""
    open_keys = {spell.key for spell in spells if spell.until is None}
    for sight in sights.values():
        if sight.key in open_keys or sight.usd_per_hour <= 0:
            continue
        before = [spell.until for spell in spells if spell.key == sight.key and spell.until]
        asked_at = [attempt.asked_at for attempt in run.attempts if attempt.key == sight.key]
        since = min(max(before, default=asked_at[0] if asked_at else now), now)
        yield Spell(sight.key, since, None, sight.usd_per_hour, now)

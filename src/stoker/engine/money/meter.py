"""What a run has cost, computed from observations of its nodes: never less than the cloud's own bill.

A spell starts when its node is requested, before the cloud counts, and ends when the node is confirmed gone, after the
cloud has stopped counting. Between two observations the higher of two prices counts. Free nodes have no spells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import ROUND_UP, Context, Decimal

from stoker.engine.decision import Sighting
from stoker.engine.nodes.lease import spare_keys
from stoker.engine.patience import WEATHER
from stoker.model.node import NodeSight, NodeState
from stoker.model.run.money import Spell
from stoker.model.run.run import Event, Run

MARK_S = 60.0  # how often an open spell is marked as seen: the most that a clock set back can hide
LEAP = 100  # a price that falls by more than this factor is ignored; one that rises by it is used, and reported
NANO = Decimal("1E-9")  # costs are rounded up to this, per spell, so that parts add up to the total
_EXACT = Context(prec=60, rounding=ROUND_UP)
_HOUR_US = Decimal(3_600_000_000)


def asked(run: Run, key: str, usd_per_hour: Decimal, now: datetime) -> Run:
    """A node is about to be requested. No change if it is free, or already counted."""
    if usd_per_hour <= 0 or any(spell.key == key and spell.until is None for spell in run.spells):
        return run
    return replace(run, spells=(*run.spells, Spell(key, now, None, usd_per_hour)))


def metered(run: Run, seen: Sighting, now: datetime) -> Run:
    """The run with the observations of its nodes. Without news it changes only, once a minute, the marks of open
    spells."""
    sights = {sight.key: sight for sight in seen.nodes}
    if not run.spells and not any(sight.usd_per_hour > 0 for sight in seen.nodes):
        return run
    spells = [after for spell in run.spells for after in _after(spell, sights.get(spell.key), seen, run, now)]
    spells += _unmetered(run, spells, sights, now)
    return replace(run, spells=tuple(spells)) if tuple(spells) != run.spells else run


def cost(spell: Spell, now: datetime) -> Decimal:
    """In dollars, to the microsecond, rounded up to a billionth. Never negative: a clock may be set back."""
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
    """The current cost per hour of all its nodes."""
    return sum((spell.usd_per_hour for spell in run.spells if spell.until is None), Decimal(0))


def price_events(before: Run, after: Run, now: datetime) -> tuple[Event, ...]:
    """Price changes of a node, for the timeline."""
    was = {spell.key: spell.usd_per_hour for spell in before.spells if spell.until is None}
    fresh = [spell for spell in after.spells if spell.until is None and spell not in before.spells]
    changed = [(was[spell.key], spell.usd_per_hour) for spell in fresh if spell.key in was]
    return tuple(
        Event(now, "price", f"the price changed from ${old.normalize():f} to ${new.normalize():f} per hour")
        for old, new in changed
        if old != new
    )


def _after(spell: Spell, sight: NodeSight | None, seen: Sighting, run: Run, now: datetime) -> Iterator[Spell]:
    """The next form of a spell: unchanged, marked again, closed, or closed and followed by the next."""
    if spell.until is not None:
        yield spell
        return
    last = spell.seen_at or spell.since
    if now < last:  # the clock was set back: at most this has passed since the last mark, and a new count starts
        closed = replace(spell, until=last + timedelta(seconds=MARK_S))
        yield closed
        yield from _after(replace(spell, since=now, seen_at=now if spell.seen_at else None), sight, seen, run, now)
    elif sight is None and _is_expected(spell, run):
        moves = spell.key in seen.unasked and (now - spell.since).total_seconds() > MARK_S
        yield replace(spell, since=now) if moves else spell
    elif sight is None:
        yield replace(spell, until=_gone_by(run, spell.key, last, seen, now))
    elif sight.state is NodeState.GONE and sight.usd_per_hour <= 0:
        never = spell.seen_at is None and sight.trouble in WEATHER  # it was unavailable, so it was not billed
        yield replace(spell, until=spell.since if never else _gone_by(run, spell.key, last, seen, now))
    else:
        yield from _at_price(spell, _believed(sight, spell), now)


def _at_price(spell: Spell, price: Decimal, now: datetime) -> Iterator[Spell]:
    if price == spell.usd_per_hour:
        fresh = spell.seen_at and (now - spell.seen_at).total_seconds() < MARK_S
        yield spell if fresh else replace(spell, seen_at=now)
        return
    # It changed at some time since it was last seen: for that time, the higher price counts.
    turn = now if price < spell.usd_per_hour else spell.seen_at or spell.since
    if turn > spell.since:
        yield replace(spell, until=turn)
    yield Spell(spell.key, turn, None, price, now)


def _believed(sight: NodeSight, spell: Spell) -> Decimal:
    """A price that is missing, or nearly zero, is a gap in the list: a running machine costs money."""
    price = sight.usd_per_hour
    if sight.state is NodeState.GONE:  # its remains may cost little
        return price
    return spell.usd_per_hour if price <= 0 or price * LEAP < spell.usd_per_hour else price


def _is_expected(spell: Spell, run: Run) -> bool:
    """It does not exist yet because it has just been requested."""
    attempt = run.attempt
    if spell.seen_at or attempt is None or run.state.ended:
        return False
    if spell.key in spare_keys(run):
        return True
    return not attempt.state.over and any(member.key == spell.key for member in attempt.members)


def _gone_by(run: Run, key: str, last: datetime, seen: Sighting, now: datetime) -> datetime:
    """A node that is gone ended at some time since it was last seen: now at the latest, or, if it was not observed for
    long, when its lease expired, a while after its last report, or when its budget was spent: its own fuse ensures
    that."""
    if not seen.outlives_s:
        return now
    parts = run.attempt.members if run.attempt else ()
    mine = next((one for member, one in zip(parts, (seen, *seen.peers), strict=False) if member.key == key), None)
    # Its lease is renewed through the store, also while its provider cannot be asked.
    leased = max([last, *(at for at in (mine.said_at, mine.renewed_at) if at)]) if mine else last
    ends = [now, leased + timedelta(seconds=MARK_S + seen.outlives_s)]
    if mine and mine.report and mine.report.outcome and mine.said_at:
        # While the server was up it may have kept it.
        ends.append(max(mine.said_at, last) + timedelta(seconds=MARK_S + seen.lingers_s))
    left = (run.budget or Decimal(0)) - spent(run, last)
    if left > 0:
        ends.append(last + timedelta(microseconds=int(left * _HOUR_US / rate(run))))
    return max(min(ends), last)


def _unmetered(run: Run, spells: list[Spell], sights: Mapping[str, NodeSight], now: datetime) -> Iterator[Spell]:
    """Nodes that exist although their spell was closed, or never opened: they are billed meanwhile."""
    open_keys = {spell.key for spell in spells if spell.until is None}
    open_keys |= {spell.key for spell in run.idle}  # its cluster pays for it
    for sight in sights.values():
        if sight.key in open_keys or sight.usd_per_hour <= 0:
            continue
        before = [spell.until for spell in spells if spell.key == sight.key and spell.until]
        asked_at = [member.asked_at for member in run.members if member.key == sight.key]
        since = min(max(before, default=asked_at[0] if asked_at else now), now)
        yield Spell(sight.key, since, None, sight.usd_per_hour, now)

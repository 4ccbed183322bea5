"""Lives of runs, written by hand: what each attempt did with its node, in seconds, and what that cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from stoker.engine.money.meter import spent
from stoker.model.job.job import Job, Spot
from stoker.model.node import Offer
from stoker.model.orders import Notice
from stoker.model.run.money import Spell
from stoker.model.run.receipt import Receipt
from stoker.model.run.report import Climb, Effort, Kept, Outcome, Phase
from stoker.model.run.run import Attempt, AttemptState, Run, RunState

START = datetime(2026, 3, 1, 14, 0, tzinfo=UTC)
PRICE = Decimal("3.60")  # an hour: a tenth of a cent for each second


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Told:
    """One attempt. The seconds are those of its phases; `kept_s` is how much of its work was safe when it ended."""

    asked: float = 0.0
    boot: float = 40.0
    unpack: float = 2.0
    stage: float = 0.0
    prepare: float = 3.0
    work: float = 100.0
    saving: float = 1.0
    idle: float = 4.0
    state: AttemptState = AttemptState.ENDED
    outcome: Outcome | None = Outcome.SUCCEEDED
    kept_s: float | None = None
    step: float | None = None
    kept_step: float | None = None
    notice_s: float | None = None
    restored: float = 0.0
    blocked: float = 0.0
    waited: float = 0.0
    climbs: tuple[Climb, ...] = ()  # what its script showed of its progress
    unheard: float = 0.0  # from its last report to being missed
    price: Decimal = PRICE
    place: str = "eastus"
    on_demand: Decimal | None = Decimal("18.00")
    spot: bool = True
    skew: float = 0.0  # of its node's clock
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def counted(self) -> float:
        return self.unpack + self.stage + self.prepare + self.work + self.saving

    @property
    def until(self) -> float:
        return self.asked + self.boot + self.counted + self.unheard + self.idle


def story(*told: Told, state: RunState = RunState.SUCCEEDED, **facts: Any) -> Run:
    """Each attempt resumes from the newest checkpoint of those before it, unless its facts say otherwise."""
    run_id, attempts, spells = "0123456789ab", [], []
    newest: Kept | None = None
    for number, one in enumerate(told, 1):
        attempt = _attempt(number, f"{run_id}-{number}", one, newest)
        attempts.append(attempt)
        if one.price:
            spells.append(Spell(attempt.key, at(one.asked), at(one.until), one.price, at(one.until)))
        newest = attempt.effort.kept or newest if attempt.effort else newest
    job = Job(name="ants", run="python train.py", on="cloud", spot=Spot() if any(one.spot for one in told) else False)
    ended = at(told[-1].until) if told and state.ended else None
    known: dict[str, Any] = {
        "id": run_id,
        "name": "ants-1",
        "number": 1,
        "job": job,
        "snapshot": "s",
        "python": "python3",
        "submitted_at": START,
        "state": state,
        "attempts": tuple(attempts),
        "spells": tuple(spells),
        "started_at": next((one.started_at for one in attempts if one.started_at), None),
        "ended_at": ended,
    }
    return Run(**(known | facts))


def evicted(**told: Any) -> Told:
    given: dict[str, Any] = {
        "state": AttemptState.EVICTED,
        "outcome": Outcome.EVICTED,
        "notice_s": 30.0,
        "kept_s": 80.0,
    }
    return Told(**(given | told))


def vanished(**told: Any) -> Told:
    given: dict[str, Any] = {
        "state": AttemptState.LOST,
        "outcome": None,
        "saving": 0.0,
        "unheard": 12.0,
        "kept_s": 70.0,
    }
    return Told(**(given | told))


def _attempt(number: int, key: str, one: Told, newest: Kept | None) -> Attempt:
    began = one.asked + one.boot + one.unpack + one.stage + one.prepare
    script_end, last_word = began + one.work, one.asked + one.boot + one.counted
    kept = Kept(number, 1, at(began + one.kept_s + one.skew), one.kept_step) if one.kept_s is not None else None
    phases = {
        Phase.UNPACKING: one.unpack,
        Phase.STAGING: one.stage,
        Phase.PREPARING: one.prepare,
        Phase.RUNNING: one.work,
        Phase.SAVING: one.saving,
    }
    effort = Effort(
        at=at(last_word + one.skew),
        phases={str(phase): seconds for phase, seconds in phases.items() if seconds},
        restored_s=one.restored,
        blocked_s=one.blocked,
        waited_s=one.waited,
        climbs=one.climbs,
        unsaved_s=one.work - (one.kept_s or 0.0),
        step=one.step,
        began_from=newest,
        kept=kept,
    )
    notice = Notice(at(script_end - one.notice_s), at(script_end), drill=False) if one.notice_s is not None else None
    offer = Offer("cloud", "D2", one.place, one.price, spot=one.spot, on_demand_usd_per_hour=one.on_demand)
    ended = script_end if one.outcome else last_word + one.unheard
    known: dict[str, Any] = {
        "number": number,
        "key": key,
        "state": one.state,
        "asked_at": at(one.asked),
        "started_at": at(began),
        "ended_at": at(ended) if one.state.over else None,
        "outcome": one.outcome,
        "offer": offer,
        "notice": notice,
        "effort": effort,
    }
    return Attempt(**(known | one.facts))


def seconds(of: Receipt) -> dict[str, float]:
    return {part: float(share.seconds) for part, share in of.parts.items() if share.seconds}


def adds_up(of: Receipt, run: Run) -> None:
    assert of.usd == spent(run, of.as_of)
    assert sum((stay.whole.usd for stay in of.stays), Decimal(0)) == of.usd
    assert sum((stay.whole.seconds for stay in of.stays), Decimal(0)) == of.seconds
    assert all(share.seconds >= 0 and share.usd >= 0 for stay in of.stays for share in stay.parts.values())
    for stay in of.stays:
        spells = [one for one in run.spells if one.key == f"{run.id}-{stay.attempt}"]
        billed = sum((max(((one.until or of.as_of) - one.since).total_seconds(), 0.0) for one in spells), 0.0)
        assert float(stay.whole.seconds) == pytest.approx(billed, abs=1e-6) or not run.spells

"""Costs for programs: what a job would cost, and what runs have cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.model import wire
from stoker.model.job.job import Job
from stoker.model.run.forecast import Forecast
from stoker.model.run.money import Costs, LimitState, Period

_OFFERS_S = 180.0  # clouds list sizes and prices slowly


def forecast(
    connection: Connection, job: Job, currency: str = "USD", hours: float | None = None, *, both: bool = False
) -> Forecast:
    asked = {"job": job.plain(), "currency": currency, "hours": hours, "both": both}
    told = connection.post("/v1/forecast", asked, timeout_s=_OFFERS_S)
    return wire.from_plain(Forecast, told)


def costs(
    connection: Connection, by: str = "experiment", since: datetime | timedelta | None = None, experiment: str = ""
) -> Costs:
    """`since` may be a time ago. Days are those of this computer."""
    now = datetime.now(UTC)
    moment = now - since if isinstance(since, timedelta) else since
    offset = now.astimezone().utcoffset() or timedelta()
    asked: dict[str, Any] = {"by": by, "zone_min": int(offset.total_seconds() // 60)}
    if moment is not None:
        asked["since"] = moment.astimezone(UTC).isoformat()
    if experiment:
        asked["experiment"] = experiment
    return wire.from_plain(Costs, connection.get("/v1/costs", asked))


# Spending limits, as administrators set them.


class Limits:
    """What people may spend, as an administrator sets it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[LimitState]:
        """With how much of each is used."""
        return _read(self._connection.get("/v1/limits"))

    def save(self, period: Period, usd: Decimal | str | float, person: str = "") -> list[LimitState]:
        """Of one person, or of everybody together. Replaces the limit of the same period."""
        asked = {"period": str(period), "usd": str(usd).strip().removeprefix("$"), "person": person}
        return _read(self._connection.post("/v1/limits", asked))

    def remove(self, period: Period, person: str = "") -> list[LimitState]:
        """NotFound if there is none."""
        whose = f"?person={quote(person, safe='')}" if person else ""
        return _read(self._connection.delete(f"/v1/limits/{period}{whose}"))


def _read(told: dict[str, Any]) -> list[LimitState]:
    return [wire.from_plain(LimitState, row) for row in told["limits"]]

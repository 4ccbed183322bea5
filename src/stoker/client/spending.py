"""Money as programs ask about it: what a job would cost, and what runs have cost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from stoker.client.connection import Connection
from stoker.model import wire
from stoker.model.costs import Costs
from stoker.model.forecast import Forecast
from stoker.model.job import Job

_OFFERS_S = 180.0  # a cloud that is asked for its sizes and its prices takes its time


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

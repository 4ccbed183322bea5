"""What administrators allow, as programs ask for it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from urllib.parse import quote

from stoker.client.connection import Connection
from stoker.model import wire
from stoker.model.money import LimitState, Period


class Limits:
    """What people may spend, as an administrator sets it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[LimitState]:
        """With what is used of each."""
        return _read(self._connection.get("/v1/limits"))

    def save(self, period: Period, usd: Decimal | str | float, person: str = "") -> list[LimitState]:
        """Of one person, or of everybody together. Replaces the one of the same period."""
        asked = {"period": str(period), "usd": str(usd).strip().removeprefix("$"), "person": person}
        return _read(self._connection.post("/v1/limits", asked))

    def remove(self, period: Period, person: str = "") -> list[LimitState]:
        """NotFound where there is none."""
        whose = f"?person={quote(person, safe='')}" if person else ""
        return _read(self._connection.delete(f"/v1/limits/{period}{whose}"))


def _read(told: dict[str, Any]) -> list[LimitState]:
    return [wire.from_plain(LimitState, row) for row in told["limits"]]

"""The limits that administrators have set, in the database."""

from __future__ import annotations

from decimal import Decimal

from sqlalchemy import Column, Delete, Engine, MetaData, String, Table, delete, insert, select

from stoker.model.run.money import Limit, Period

_LIMITS = Table(
    "limits",
    MetaData(),
    Column("period", String, primary_key=True),
    Column("person", String, primary_key=True),
    Column("usd", String),
)


class LimitTable:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def all(self) -> list[Limit]:
        """Those of everybody first, then by person; a day before a month."""
        with self._engine.connect() as connection:
            rows = connection.execute(select(_LIMITS).order_by(_LIMITS.c.person, _LIMITS.c.period)).mappings().all()
        return [Limit(Period(row["period"]), Decimal(row["usd"]), row["person"]) for row in rows]

    def save(self, limit: Limit) -> None:
        """Adds it, or replaces the one of its person and period."""
        with self._engine.begin() as connection:
            connection.execute(_same(limit.period, limit.person))
            row = {"period": str(limit.period), "person": limit.person, "usd": str(limit.usd)}
            connection.execute(insert(_LIMITS).values(row))

    def remove(self, period: Period, person: str) -> bool:
        """False where there was none."""
        with self._engine.begin() as connection:
            return connection.execute(_same(period, person)).rowcount > 0


def _same(period: Period, person: str) -> Delete:
    return delete(_LIMITS).where(_LIMITS.c.period == str(period), _LIMITS.c.person == person)

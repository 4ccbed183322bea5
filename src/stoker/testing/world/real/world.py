"""A world whose server is the real one. Its scenarios, mishaps and promises are those of every world."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

from stoker.testing.world.leases import WorldLeases
from stoker.testing.world.machine import WorldMachine
from stoker.testing.world.promises import PromiseBroken
from stoker.testing.world.real.provider import WorldProvider
from stoker.testing.world.real.server import RealServer
from stoker.testing.world.real.store import FAR, NEAR, WorldStore
from stoker.testing.world.scenario import Scenario
from stoker.testing.world.world import World


class RealWorld(World):
    def __init__(self, scenario: Scenario, *, trace: bool = False) -> None:
        self._found: PromiseBroken | None = None  # inside the server, which would treat it as its own error
        super().__init__(scenario, trace=trace)
        self.cloud.made = self._made

    def _furnish(self) -> None:
        scenario = self.scenario
        cloud = bool(scenario.places)
        features = replace(self.features, market=cloud, spot=cloud, shares_files=not cloud, look_idle_s=30.0)
        provider = WorldProvider(self.cloud, self.timeline, features, None if cloud else scenario.slots)
        self.stored_leases = StoredLeases(self.cloud, self.timeline, scenario.idle_s)
        self.leases = self.stored_leases
        self.server = self.real = RealServer(self, WorldStore(self, FAR if cloud else NEAR), provider)

    def live(self) -> Self:
        with _listening() as surprises:
            self._surprises = surprises
            try:
                super().live()
            finally:
                self.real.bury()
        for run in self.real.saved.values():
            if (kept := self.real.database.find(run.name)) != run:
                raise PromiseBroken("what is saved can be read", f"{run.name} was saved as {run} but is read as {kept}")
        return self

    def check(self) -> None:
        super().check()
        if self.trace is not None:
            for told in self.real.database.told:
                self.note(told)
        self.real.database.told.clear()
        if self._found:
            raise self._found
        if surprises := self._surprises + self.real.failures:
            raise PromiseBroken("the server does not fail", surprises[0])

    def _made(self, machine: WorldMachine) -> None:
        try:
            self.promises.made(machine)
        except PromiseBroken as found:
            self._found = self._found or found


class _Surprises(logging.Handler):
    """Errors for which the server logs a traceback, which nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            error = record.exc_info[1]
            self.said.append(f"{record.getMessage()} ({type(error).__name__} in {_where(error)})")


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_qualname}, line {trace.tb_lineno}" if trace else "nowhere"


@contextmanager
def _listening() -> Iterator[list[str]]:
    logger, surprises = logging.getLogger("stoker.server"), _Surprises()
    before = logger.propagate, logger.level
    logger.addHandler(surprises)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield surprises.said
    finally:
        logger.removeHandler(surprises)
        logger.propagate = before[0]
        logger.setLevel(before[1])


class StoredLeases(WorldLeases):
    """Machines look often, and their looks need no events: a lease is seen when it is written, or as soon as a machine
    that was cut off can read again."""

    def given(self, key: str, seconds: float) -> None:
        """The server has written one."""
        machine = self._cloud.machines.get(key)
        if machine is None:
            return
        machine.lease_s, machine.given_at, machine.renewed = seconds, self._timeline.now, True
        self.settle(machine)

    def settle(self, machine: WorldMachine) -> None:
        """`renewed`: there is one that the machine has not seen. An idle machine stays only for a short time."""
        if not machine.lease_s or not machine.up or machine.off:
            return
        if machine.renewed and not self.is_cut(machine):
            machine.renewed = False
            self._run_out(machine)
        elif self.is_idle(machine) and self._timeline.now + self._lasts_s(machine) < machine.lease_until:
            self._run_out(machine)

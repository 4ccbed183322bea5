"""A sweep as programs hold it: check how far it is, wait, retry, extend, cancel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.settings import ClientSettings
from stoker.client.submit.preparation import secrets_of
from stoker.model import wire
from stoker.model.job.fields import Plain
from stoker.model.job.job import Job
from stoker.model.run.run import RunState
from stoker.model.run.sweep import SweepState

_LOOK_S = 1.0
_MANY_S = 300.0  # for the answer about a hundred thousand trials


class SweepHandle:
    """A sweep on a server. `state` is its last known state; `refresh` and `wait` update it."""

    def __init__(self, state: SweepState, connection: Connection, settings: ClientSettings) -> None:
        self.state = state
        self._connection = connection
        self._settings = settings

    @classmethod
    def found(cls, name: str, connection: Connection, settings: ClientSettings) -> SweepHandle:
        told = connection.get(f"/v1/sweeps/{quote(name, safe='')}")
        return cls(wire.from_plain(SweepState, told), connection, settings)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {state}" for state, count in self.state.states.items())
        return f"Sweep({self.name}: {counts})"

    @property
    def name(self) -> str:
        """`<job name>-s<n>`, or the name given at submission."""
        return self.state.sweep.name

    @property
    def job(self) -> Job:
        """With its matrix."""
        return self.state.sweep.job

    def refresh(self) -> SweepHandle:
        """Updates `state`. Returns itself."""
        self.state = wire.from_plain(SweepState, self._connection.get(self._path()))
        return self

    def changes(self, timeout_s: float | None = None) -> Iterator[SweepState]:
        """Its state now, then after every change, until all trials have ended or are paused, or the time is up."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        yield self.state
        while self.working and (give_up is None or time.monotonic() < give_up):
            time.sleep(_LOOK_S)
            before = self.state
            if self.refresh().state != before:
                yield self.state

    @property
    def working(self) -> int:
        """How many trials wait for a node, have one, or are still to be drawn. None, if a search waits for trials that
        the budget paused."""
        short = self.state.states.get(RunState.PAUSED, 0)
        working = self.state.open - short
        return 0 if short and working == self.state.paused else working + self.state.sweep.due

    def wait(self, timeout_s: float | None = None) -> SweepHandle:
        """Returns when all trials have ended or are paused, or when the time is up: check `state`."""
        for _ in self.changes(timeout_s):
            pass
        return self

    def set_budget(self, usd: Decimal | str | float | None) -> SweepHandle:
        """What all trials together may cost; None: no budget. Trials that are paused start again if it is enough."""
        amount = None if usd is None else str(usd).strip().removeprefix("$")
        self.state = wire.from_plain(SweepState, self._post("budget", {"usd": amount}))
        return self

    def cancel(self) -> int:
        """Requests cancellation of every trial that has not ended. How many."""
        cancelled = int(self._post("cancel")["cancelled"])
        self.refresh()
        return cancelled

    def retry(self) -> list[str]:
        """Starts a new run for each trial whose newest run has failed. The names of the new runs."""
        runs = list(self._post("retry", {"secrets": secrets_of(self.job, self._settings)})["runs"])
        self.refresh()
        return runs

    def extend(self, matrix: Mapping[str, Plain]) -> SweepHandle:
        """Adds the trials that the sweep would have with these values and does not have yet. Parameters that are not
        given keep their values. The code is that of the sweep."""
        known: Any = self.job.matrix
        job = Job.read({**self.job.plain(), "matrix": {**known.plain(), **matrix}})
        asked = {"job": job.plain(), "secrets": secrets_of(job, self._settings)}
        self.state = wire.from_plain(SweepState, self._post("extend", asked))
        return self

    def _post(self, verb: str, asked: Mapping[str, Any] | None = None) -> Any:
        return self._connection.post(
            f"{self._path()}/{verb}", asked, repeat=verb in ("cancel", "budget"), timeout_s=_MANY_S
        )

    def _path(self) -> str:
        return f"/v1/sweeps/{quote(self.name, safe='')}"

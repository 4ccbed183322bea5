"""A run as programs hold it: ask how it is, wait, read its logs and metrics, bring its outputs back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from stoker.client.connection import Connection
from stoker.client.metrics import Metrics
from stoker.client.settings import Settings
from stoker.model import run as model
from stoker.model.run import Event, RunState


@dataclass(frozen=True, slots=True)
class Log:
    """One rank's output in one attempt, as far as it has arrived."""

    attempt: int
    rank: int
    size_bytes: int
    complete: bool


class Run:
    """A run on a server. `facts` are those last seen; `refresh` and `wait` renew them."""

    def __init__(self, facts: model.Run, connection: Connection, settings: Settings) -> None:
        self.facts = facts

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def state(self) -> RunState:
        """As last seen."""
        return self.facts.state

    def refresh(self) -> Run:
        """Looks once. Returns itself, so that `run.refresh().state` reads well."""
        raise NotImplementedError

    def changes(self, timeout_s: float | None = None) -> Iterator[model.Run]:
        """The facts now, then after every change, until the run has ended or the time is up."""
        raise NotImplementedError

    def wait(self, timeout_s: float | None = None, *, check: bool = False) -> Run:
        """Returns once the run has ended, or when the time is up: look at `state`.

        With `check`, a run that did not succeed raises RunFailed, and a time-out TimeoutError. In a notebook a
        display of the run is kept up to date meanwhile.
        """
        raise NotImplementedError

    def logs(
        self,
        rank: int = 0,
        attempt: int | None = None,
        *,
        follow: bool = False,
        since: datetime | None = None,
        offset: int = 0,
    ) -> Iterator[bytes]:
        """The raw bytes a rank wrote, from `offset` of the attempt's log on. None is the newest attempt.

        With `follow` they keep coming until the attempt has ended; where `attempt` is None it begins with the newest
        and goes on through later ones until the run has ended. A lost connection or a server restart is bridged:
        nothing is lost, nothing comes twice.
        """
        raise NotImplementedError

    def log_list(self) -> list[Log]:
        """Every log there is, by attempt and rank."""
        raise NotImplementedError

    def metrics(self) -> Metrics:
        raise NotImplementedError

    def events(self) -> list[Event]:
        """The run's timeline."""
        raise NotImplementedError

    def cancel(self) -> Run:
        """Asks for the end and returns at once; `wait` for it. Ended runs are a Conflict."""
        raise NotImplementedError

    def fetch(self, into: Path | str | None = None) -> Path:
        """Brings the outputs to `into/<run>` and returns that folder; None is `./outputs`.

        Every byte is verified before it takes its place. A failed run lands in `<run>-failed`, a cancelled one in
        `<run>-cancelled`. Calling it again brings only what has changed.
        """
        raise NotImplementedError

    @property
    def outputs(self) -> Path:
        """The folder with the run's outputs, fetched now if they are not on this computer yet."""
        raise NotImplementedError

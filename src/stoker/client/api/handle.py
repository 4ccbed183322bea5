"""A run as programs hold it: check its state, wait, read its logs and metrics, download its outputs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.api.reading import Tail, Waits, patiently
from stoker.client.settings import ClientSettings
from stoker.errors import BudgetReached, NotFound, RunFailed
from stoker.model import wire
from stoker.model.cause import Cause
from stoker.model.node import Entrance
from stoker.model.run.money import BudgetState
from stoker.model.run.run import Event, Run, RunState

if TYPE_CHECKING:
    from stoker.client.api.reach import VisitHandle
    from stoker.client.api.reading import Metrics, WantedResults
    from stoker.client.progress import TransferProgress
    from stoker.model.run.receipt import Receipt
    from stoker.model.run.stacks import RankStacks
    from stoker.model.snapshot import Entry

_LONG_POLL_S = 25.0
_LOOK_S = 120.0  # clouds respond slowly
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Log:
    """One rank's output in one attempt, as far as it is uploaded."""

    attempt: int
    rank: int
    size_bytes: int
    complete: bool


class RunHandle:
    """A run on a server. `facts` is its last known record; `refresh` and `wait` update it."""

    def __init__(self, facts: Run, connection: Connection, settings: ClientSettings) -> None:
        self.facts = facts
        self._connection = connection
        self._settings = settings

    def __repr__(self) -> str:
        return f"Run({self.name}: {self.state})"

    def _repr_html_(self) -> str:
        from stoker.client.report.pages import card  # needed only in notebooks

        return card(self.facts, datetime.now(UTC))

    @property
    def name(self) -> str:
        """`<job name>-<n>`, or the name given at submission."""
        return self.facts.name

    @property
    def state(self) -> RunState:
        """The last known state."""
        return self.facts.state

    @property
    def cause(self) -> str:
        """Why it is in that state, as one word: a `Cause`, or the code of an error. `facts.reason` says it in words."""
        return self.facts.cause

    def refresh(self) -> RunHandle:
        """Updates `facts`. Returns itself, so that you can write `run.refresh().state`."""
        self.facts = wire.from_plain(Run, self._connection.get(self._path()))
        return self

    def changes(self, timeout_s: float | None = None) -> Iterator[Run]:
        """The record of the run now, then after every change, until the run has ended or the time is up.

        Ended includes that the server has downloaded the outputs, if it does so.
        """
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        yield self.facts
        while self.facts.open:
            wait_s = _LONG_POLL_S if give_up is None else min(_LONG_POLL_S, give_up - time.monotonic())
            if wait_s <= 0:
                return
            if self._newer(wait_s):
                yield self.facts

    def wait(self, timeout_s: float | None = None, *, check: bool = False) -> RunHandle:
        """Returns when the run has ended or is paused, or when the time is up: check `state`.

        With `check`, a run that did not succeed raises RunFailed, a paused one BudgetReached, and a timeout
        TimeoutError. In a notebook, a card shows the run meanwhile.
        """
        with self._display():
            for facts in self.changes(timeout_s):
                if facts.state is RunState.PAUSED:
                    break
        if check and self.state is RunState.PAUSED:
            raise BudgetReached(f"{self.name} is paused: {self.facts.reason}", hint=self.facts.hint)
        if check and not self.state.ended:
            raise TimeoutError(f"{self.name} is still {self.state} after {timeout_s:g} s")
        if check and self.state is not RunState.SUCCEEDED:
            why = f": {self.facts.reason}" if self.facts.reason else ""
            raise RunFailed(
                f"{self.name} {_ENDED[self.state]}{why}", hint=self.facts.hint or f"stoker logs {self.name}"
            )
        return self

    def logs(
        self,
        rank: int = 0,
        attempt: int | None = None,
        *,
        follow: bool = False,
        since: datetime | None = None,
        offset: int = 0,
        waits: Waits = lambda _: False,
    ) -> Iterator[bytes]:
        """The raw output of a rank, from `offset` of the attempt's log on. None is the newest attempt.

        With `follow` it streams until the attempt has ended; if `attempt` is None, it starts with the newest and
        continues through later ones until the run has ended. It survives a lost connection or a server restart:
        no byte is lost or repeated. `waits` is called for longer outages of server and store; if it returns True,
        the stream waits for their end.
        """
        number = patiently(lambda: self._attempt(attempt, follow), waits)
        if number is None:
            return
        tail = Tail(self._connection, f"{self._path()}/logs/{number}/{rank}", offset, since, waits)
        yield from self._tailed(tail, number, follow, waits)
        if not tail.read_any:
            patiently(partial(self._check_rank, number, rank), waits)
        while follow and attempt is None and patiently(partial(self._has_later, number), waits):
            number += 1
            tail = Tail(self._connection, f"{self._path()}/logs/{number}/{rank}", waits=waits)
            yield from self._tailed(tail, number, follow, waits)

    def log_list(self) -> list[Log]:
        """All logs, by attempt and rank."""
        rows = self._connection.get(f"{self._path()}/logs")["logs"]
        return [Log(row["attempt"], row["rank"], row["bytes"], row["complete"]) for row in rows]

    def metrics(self) -> Metrics:
        """All metrics of the run so far."""
        return self.new_metrics()[0]

    def new_metrics(self, after: int = 0) -> tuple[Metrics, int]:
        """The metrics reported since an earlier call, and the number to pass to the next call as `after`."""
        from stoker.client.api.reading import Metrics, Point  # not needed to submit or follow

        rows: list[dict[str, Any]] = []
        page: dict[str, Any] = {"next": after, "more": True}
        while page.get("more"):
            page = self._connection.get(f"{self._path()}/metrics", {"after": page["next"]})
            rows += page["points"]
        points = (
            Point(row["attempt"], row["rank"], _moment(row["at"]), row["step"], _numbers(row["values"])) for row in rows
        )
        return Metrics(points), int(page["next"])

    def events(self) -> list[Event]:
        """The run's timeline."""
        return [wire.from_plain(Event, row) for row in self._connection.get(f"{self._path()}/events")["events"]]

    def receipt(self, *, look: bool = False) -> Receipt:
        """Where the money and the time of the run went, so far if it is active. With `look` the provider is asked which
        of its resources exist now, which takes a moment."""
        from stoker.model.run.receipt import Receipt  # not needed to submit or follow

        query = {"look": "true"} if look else {}
        return wire.from_plain(Receipt, self._connection.get(f"{self._path()}/receipt", query, timeout_s=_LOOK_S))

    def explain(self, clock: Callable[[datetime], str] | None = None) -> list[str]:
        """What happened to the run and why, in sentences. `clock` formats times; None: local time."""
        from stoker.client.report.explain import explain  # not needed to submit or follow

        self.refresh()
        shown = clock or (lambda at: f"{at.astimezone():%H:%M:%S}")
        return explain(self.facts, self.receipt(), self.events(), shown)

    def cancel(self) -> RunHandle:
        """Requests cancellation and returns immediately; use `wait`. Raises Conflict if the run has ended."""
        self.facts = wire.from_plain(Run, self._connection.post(f"{self._path()}/cancel"))
        return self

    def evict(self, notice_s: float = 30.0, *, withdraw: bool = False) -> RunHandle:
        """A drill: evicts its machine after the notice; the run resumes from its last checkpoint."""
        asked = {"notice_s": notice_s, "withdraw": withdraw}
        self.facts = wire.from_plain(Run, self._connection.post(f"{self._path()}/evict", asked))
        return self

    def exec(self, *words: str, node: int = 0) -> VisitHandle:
        """Runs a command on its node, next to the script, and returns when it has started: `frames` is its output and
        `ended` its end. `node` is the number of one in a gang."""
        from stoker.client.api.reach import VisitHandle  # not needed to submit or follow

        return VisitHandle(self._connection, self.name, words, node=node)

    def stacks(self) -> tuple[RankStacks, ...]:
        """Where each of its ranks is now, on all nodes. A node that does not answer has one entry, which says why."""
        from stoker.client.api.reach import taken_stacks  # not needed to submit or follow

        attempt = self.facts.attempt
        return taken_stacks(self._connection, self.name, len(attempt.members) if attempt else 1)

    def entrance(self) -> tuple[Entrance, str]:
        """How to open a terminal on its node, and the node's key. Raises Conflict if that is not supported."""
        told = self._connection.get(f"{self._path()}/entrance", timeout_s=60.0)
        return wire.from_plain(Entrance, told["entrance"]), str(told["key"])

    def release(self) -> RunHandle:
        """Releases the node that was kept after the run's failure. Raises Conflict if none is kept."""
        self.facts = wire.from_plain(Run, self._connection.post(f"{self._path()}/release"))
        return self

    def budget(self) -> BudgetState:
        """What the run may cost, has cost so far, and costs per hour."""
        return wire.from_plain(BudgetState, self._connection.get(f"{self._path()}/budget"))

    def set_budget(self, usd: Decimal | str | float | None) -> RunHandle:
        """Sets what the run may cost in total; None: no budget. A paused run resumes if the budget is enough; a run
        that has cost more is paused. BudgetTooSmall names the minimum."""
        amount = None if usd is None else str(usd).strip().removeprefix("$")
        self.facts = wire.from_plain(Run, self._connection.post(f"{self._path()}/budget", {"usd": amount}))
        return self

    def fetch(self, into: Path | str | None = None, *, progress: TransferProgress | None = None) -> Path:
        """Downloads the outputs to `into/<run>` and returns that folder; None is `./outputs`.

        Every file is verified before it is put in place. The folder of a run that did not succeed is `<run>-failed` or
        `<run>-cancelled`, that of an active run `<run>-running`. Calling it again downloads only what has changed.
        """
        from stoker.client.api.reading import fetch  # not needed to submit or follow

        self.refresh()
        folder, _ = fetch(self.facts, self._connection, Path("outputs") if into is None else Path(into), progress)
        return folder

    def fetch_files(
        self, wanted: WantedResults, into: Path | str | None = None, *, progress: TransferProgress | None = None
    ) -> tuple[Path, tuple[Entry, ...]]:
        """Like `fetch`, for the newest checkpoint or for stray files. Also returns the files that are in the folder."""
        from stoker.client.api.reading import fetch  # likewise

        self.refresh()
        parent = Path("outputs") if into is None else Path(into)
        return fetch(self.facts, self._connection, parent, progress, wanted)

    @property
    def outputs(self) -> Path:
        """The folder with the run's outputs. Downloads them if they are not on this computer yet."""
        if self.facts.landing:
            self.wait()
        landed = Path(self.facts.landed) if self.facts.landed and self._settings.local else None
        return landed if landed and landed.is_dir() else self.fetch()

    def _display(self) -> AbstractContextManager[None]:
        if "IPython" not in sys.modules:
            return nullcontext()
        from stoker.client.report.pages import Live, inside  # only notebooks need it

        return Live(self) if inside() else nullcontext()

    def _path(self) -> str:
        return f"/v1/runs/{quote(self.name, safe='')}"

    def _newer(self, wait_s: float) -> bool:
        """Waits for facts newer than those last seen; False if there were none."""
        version = self.facts.version
        query = {"newer_than": version, "wait_s": round(wait_s, 3)}
        told = self._connection.get(self._path(), query, timeout_s=wait_s + 30.0)
        self.facts = wire.from_plain(Run, told)
        return self.facts.version > version

    def _attempt(self, wanted: int | None, follow: bool) -> int | None:
        """The attempt to read; None if there is none yet and none is waited for."""
        if not self._seen(wanted):
            self.refresh()
        if wanted is not None:
            if not self._seen(wanted) and not (follow and not self.state.ended):
                raise NotFound(
                    f"{self.name} has no attempt {wanted}",
                    hint=f"it has {len(self.facts.attempts)}",
                    cause=Cause.NO_SUCH_ATTEMPT,
                )
            return wanted
        newest = self.facts.attempt
        return newest.number if newest else 1 if follow else None

    def _seen(self, number: int | None) -> bool:
        """Whether an attempt is the last one is only known once the run has ended."""
        if number is None:
            return self.state.ended
        return any(attempt.number == number for attempt in self.facts.attempts)

    def _tailed(self, tail: Tail, number: int, follow: bool, waits: Waits) -> Iterator[bytes]:
        yield from tail.read(follow)
        # A response that ends before the attempt does was closed by the server: continue at the offset.
        while follow and not patiently(partial(self._over, number), waits):
            time.sleep(_PAUSE_S)
            yield from tail.read(follow)
        if follow:
            yield from tail.read(follow=False)  # raises if the store has become unavailable

    def _over(self, number: int) -> bool:
        self.refresh()
        found = [attempt for attempt in self.facts.attempts if attempt.number == number]
        return self.state.ended if not found else found[0].state.over

    def _has_later(self, number: int) -> bool:
        """Waits until there is a later attempt, or there will be none."""
        while len(self.facts.attempts) <= number:
            if self.state.ended or self.state is RunState.PAUSED:
                return False
            self._newer(_LONG_POLL_S)
        return True

    def _check_rank(self, number: int, rank: int) -> None:
        """An empty log is fine; a rank that does not exist is an error."""
        ranks = [log.rank for log in self.log_list() if log.attempt == number]
        if ranks and rank not in ranks:
            known = ", ".join(str(one) for one in ranks)
            raise NotFound(
                f"attempt {number} of {self.name} has no rank {rank}", hint=f"it has {known}", cause=Cause.NO_SUCH_RANK
            )


_ENDED = {RunState.FAILED: "failed", RunState.CANCELLED: "was cancelled"}


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """JSON cannot represent NaN and infinity."""
    return {name: nan if value is None else value for name, value in values.items()}


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)

"""Watches a run of a certification: how far it is, by what it reports, saves and prints rather than by the clock; and
chooses which ranks or nodes of a distributed run are killed."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from stoker.client.api.connection import Connection
from stoker.client.api.handle import RunHandle
from stoker.client.api.reach import VisitHandle
from stoker.client.certify.evidence import Moment, Pace, Victim
from stoker.model.job.job import Job
from stoker.model.run.run import AttemptState

Tell = Callable[[str], None]

_LOOK_S = 1.0  # between looks at what a run does
_CLOSE_S = 0.05  # the same where an eviction is due soon; grows, because long runs have many points
_GROWTH = 1.02
_LONGEST_LOOK_S = 5.0
_TOLD_EVERY_S = 15.0


@dataclass
class RunWatch:
    """One run. It is given up at `until`, a moment of the monotonic clock, or if it shows no sign for `quiet_s`."""

    run: RunHandle
    connection: Connection
    tell: Tell = lambda _text: None
    until: float | None = None
    quiet_s: float | None = None
    usual: Pace | None = None  # of the undisturbed run, to tell how far this one is
    points: Counter[int] = field(default_factory=Counter)  # by attempt
    printed: Counter[int] = field(default_factory=Counter)  # bytes, by attempt
    stalled: bool = False
    out_of_time: bool = False

    def __post_init__(self) -> None:
        self._path = f"/v1/runs/{quote(self.run.name, safe='')}"
        self._next = 0
        self._began = self._moved_at = self._told_at = time.monotonic()
        self._signs: tuple[object, ...] = ()
        self._longest_s = self._read_at = 0.0
        self._first_s: float | None = None
        self._first_point_s: float | None = None
        self._texts: set[int] = set()  # how much it had printed at each look
        self._saved_at: tuple[int, int] | None = None  # points and bytes, when it first had a checkpoint

    @property
    def given_up(self) -> bool:
        return self.stalled or self.out_of_time

    @property
    def saved(self) -> bool:
        """Some attempt has a checkpoint, so that the next one does not start from nothing."""
        return any(one.saved for one in self.run.facts.attempts)

    def wait(self, enough: Callable[[], bool], *, close: bool = False) -> None:
        """Until the run has ended, is given up, or the condition holds."""
        pause_s = _CLOSE_S if close else _LOOK_S
        while not self.given_up:
            for _ in self.run.changes(pause_s):
                if self.run.state.ended or enough():
                    self._look()
                    return
            self._look()
            self._judge()
            pause_s = min(pause_s * _GROWTH, _LONGEST_LOOK_S)

    def done(self, attempt: int, usual: Pace) -> float | None:
        """The share of the whole training that this attempt has done; None: it cannot be observed."""
        if usual.points:
            return self.points[attempt] / usual.points
        return self.printed[attempt] / usual.printed if usual.printed else None

    def pace(self) -> Pace:
        """Of a run that has ended."""
        points, printed = self.points.total(), self.printed.total()
        steady = len(self._texts) >= 3  # it prints while it works, not only at the end
        saved: float | None = None
        if self._saved_at and points:
            saved = self._saved_at[0] / points
        elif self._saved_at and steady:
            saved = self._saved_at[1] / printed
        gap_s = max(self._longest_s, time.monotonic() - self._moved_at)
        first_s = self._first_point_s if points else self._first_s
        return Pace(points=points, printed=printed if steady else 0, saved=saved, first_s=first_s, gap_s=gap_s)

    def _look(self) -> None:
        page: dict[str, Any] = {"more": True}
        while page.get("more"):
            page = self.connection.get(f"{self._path}/metrics", {"after": self._next})
            self._next = page["next"]
            self.points.update(point["attempt"] for point in page["points"])
            if self._first_point_s is None and page["points"]:
                self._first_point_s = self._since_start(page["points"][0]["at"])
        if (
            not (self.usual and self.usual.points)
            or self.run.state.ended
            or time.monotonic() >= self._read_at + _LOOK_S
        ):
            self._read_logs()
        if self._first_s is None and self._texts:
            self._first_s = self._since_start(time.time())
        if self._saved_at is None and self.saved:
            self._saved_at = self.points.total(), self.printed.total()
        states = tuple((one.state, one.saved) for one in self.run.facts.attempts)
        signs = (self._next, self.printed.total(), states)
        if signs != self._signs:
            self._longest_s = max(self._longest_s, time.monotonic() - self._moved_at)
            self._signs, self._moved_at = signs, time.monotonic()

    def _read_logs(self) -> None:
        self._read_at = time.monotonic()
        self.printed.clear()
        for log in self.run.log_list():
            self.printed[log.attempt] += log.size_bytes
        self._texts |= {self.printed.total()} - {0}

    def _since_start(self, at: float) -> float | None:
        started = self.run.facts.started_at
        return max(at - started.timestamp(), 0.0) if started else None

    def _judge(self) -> None:
        now = time.monotonic()
        attempt = self.run.facts.attempt
        works = attempt is not None and attempt.state is AttemptState.RUNNING and attempt.started_at is not None
        self.stalled = works and self.quiet_s is not None and now - self._moved_at > self.quiet_s
        self.out_of_time = not self.stalled and self.until is not None and now > self.until
        if now - self._told_at >= _TOLD_EVERY_S:
            self._told_at = now
            self.tell(f"  {self.run.name}: {self._so_far()}, {now - self._began:.0f} s")

    def _so_far(self) -> str:
        attempts = self.run.facts.attempts
        if not attempts or attempts[-1].started_at is None:
            return "starting"
        number = attempts[-1].number
        which = f"attempt {number}, " if number > 1 else ""
        share = self.done(number, self.usual) if self.usual else None
        if self.points[number]:
            of = f" of {self.usual.points}" if self.usual else ""
            return f"{which}{self.points[number]}{of} values reported"
        if share is not None:
            return f"{which}{min(share, 1.0):.0%} printed"
        return f"{which}nothing reported yet"


@dataclass(frozen=True, slots=True)
class CertifiedWorld:
    nodes: int
    processes: int  # of each node

    @classmethod
    def of(cls, job: Job) -> CertifiedWorld:
        return cls(job.most_nodes, job.processes if isinstance(job.processes, int) else 1)


def with_victims(
    runs: Sequence[tuple[Moment, ...]], world: CertifiedWorld, chance: random.Random
) -> list[tuple[Moment, ...]]:
    """Evictions without notice hit one rank or one node, in turns; those with notice hit all nodes, as a drill does."""
    if world.nodes * world.processes == 1:
        return list(runs)
    found, killed = [], chance.randrange(2)
    for moments in runs:
        chosen = []
        for moment in moments:
            if not moment.notice_s:
                moment = replace(moment, victim=_victim(world, chance, node=bool(killed % 2)))
                killed += 1
            chosen.append(moment)
        found.append(tuple(chosen))
    return found


def _victim(world: CertifiedWorld, chance: random.Random, *, node: bool) -> Victim:
    if node and world.nodes > 1:
        return Victim(chance.randrange(world.nodes))
    rank = chance.randrange(world.nodes * world.processes)
    return Victim(rank // world.processes, rank)


# Run on the node, with the number of a rank or `agent`. Every process of a rank has its number in its environment.
_KILL = """
import json, os, pathlib, signal, sys
own = f"STOKER_NODE_KEY={os.environ['STOKER_NODE_KEY']}".encode()
if sys.argv[1] == "agent":
    errand = next(one / "errand.json" for one in pathlib.Path.cwd().parents if (one / "errand.json").exists())
    os.kill(json.loads(errand.read_bytes())["agent"], signal.SIGKILL)
for one in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        found = (one / "environ").read_bytes().split(b"\\0")
        if own in found and f"RANK={sys.argv[1]}".encode() in found:
            os.kill(int(one.name), signal.SIGKILL)
    except OSError:
        pass
"""


def kill(run: RunHandle, victim: Victim) -> VisitHandle:
    """Neither the script nor its agent can do anything before. Raises Conflict where the run has ended. Hold what
    is returned until the attempt has ended: the command ends with it."""
    whom = "agent" if victim.rank is None else str(victim.rank)
    return run.exec(sys.executable, "-I", "-S", "-c", _KILL, whom, node=victim.node)

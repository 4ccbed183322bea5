"""What ends a script early: an eviction notice, with its file and SIGTERM, or the target of `stop_when`."""

from __future__ import annotations

import difflib
import json
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from stoker.agent.checkpoints.keeper import Keeper
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes.family import CpuPriority
from stoker.agent.processes.ranks import RankProcesses
from stoker.agent.shipping.metrics.points import MetricPoint
from stoker.model.job.job import Job
from stoker.model.job.search import Rung
from stoker.model.job.sections import Target
from stoker.model.orders import Notice
from stoker.model.run.report import Outcome

LEAST_RESERVE_S = 1.5  # reserved at the end of a notice, whatever commits have taken so far
MOST_RESERVE = 0.5  # of the notice
CAUTION = 1.5  # how much longer than the first time a script may take to reach its next step and save
WENT_ON_S = 600.0  # a script that still runs so long after a notice was withdrawn has ignored it

SAVED, SAVED_AGAIN = "the script saved", "the script saved again"

Tell = Callable[[str, str], None]


class Noticing:
    """`see` is for the thread that receives notices; everything else is for the main thread.

    Why a script has ended after SIGTERM is not visible: its exit code is 0 either way. One that creates
    `$STOKER_FINISHED` afterwards has finished. Any other is assumed to have stopped because of the notice: restarting
    it to check costs little, and mistaking half a training for a whole one costs the training.
    """

    def __init__(
        self,
        folder: NodeFolder,
        keeper: Keeper,
        tell: Tell,
        priority: CpuPriority | None = None,
        hasten: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`hasten` tells others that the eviction is near, or no longer."""
        self._file = folder.notice
        self._saved = folder.notice_saved
        self._finished = folder.finished
        self._keeper = keeper
        self._priority = priority or CpuPriority()
        self._tell = tell
        self._hasten = hasten
        self._announced: Notice | None = None
        self._current: Notice | None = None
        self._since = 0.0
        self._until = 0.0
        self._parts: dict[str, float] = {}  # what has happened since, with seconds after the notice
        self._last = False  # the script was asked for its last save
        self._withdrawn_at = math.inf
        self.idle_since: float | None = None  # the script has made its last save, and waits for the shutdown
        self.told = False  # some script got SIGTERM because of a notice, and may be about to end

    def see(self, notice: Notice | None) -> None:
        self._announced = notice

    def act(self, ranks: RankProcesses) -> None:
        """Called repeatedly while the ranks run."""
        announced = self._announced
        if announced != self._current:
            self._withdrawn(ranks) if announced is None else self._begin(announced)
        if self._current:
            self._go_on(self._current, ranks)
        elif self.told and time.monotonic() - self._withdrawn_at >= WENT_ON_S:
            self.told = False
            ranks.count_as_untold()

    @property
    def resting(self) -> bool:
        """The script was told that it is about to be evicted: it may have saved, and do nothing more."""
        return self._current is not None

    @property
    def finished(self) -> bool:
        """The script has created `$STOKER_FINISHED` since the last SIGTERM."""
        return self._finished.exists()

    def ended(self) -> None:
        """The script has ended, for any reason."""
        self._note("the script ended")

    def conclude(self) -> None:
        """Reports how long each part took, once everything is saved."""
        if not self._current:
            return
        if self._keeper.last and self._keeper.last_at > self._since:
            self._parts[f"checkpoint {self._keeper.last.number} was saved"] = self._keeper.last_at - self._since
        parts = "; ".join(f"{what} after {seconds:.2f} s" for what, seconds in self._parts.items())
        self._tell("notice-done", f"of {self._current.seconds:g} s notice: {parts}")

    def _begin(self, notice: Notice) -> None:
        """Uses this node's wall clock once, then the monotonic one: setting the clock loses no save."""
        late_s = min(max((datetime.now(UTC) - notice.at).total_seconds(), 0.0), notice.seconds)
        self._current, self._since, self._parts = notice, time.monotonic(), {}
        self.idle_since = None
        self._until = self._since + notice.seconds - late_s
        self._last = self._left_s <= 2 * self._reserve_s(notice)  # too short for two saves
        how = self._write(notice)
        self._tell("notice", f"eviction notice: {notice.seconds - late_s:.1f} s left{how}")
        self._priority.raise_()
        self._keeper.insure()

    def _write(self, notice: Notice) -> str:
        """An error as text; empty where it worked. The script continues in any case."""
        words = {"kind": "evict", "at": notice.at.timestamp(), "deadline": notice.deadline.timestamp()}
        if self._last:
            words["last"] = True
        part = self._file.with_name(f"{self._file.name}.part")
        try:
            self._saved.unlink(missing_ok=True)
            part.write_text(json.dumps(words))
            part.replace(self._file)
        except OSError as error:
            return f"; could not write the notice file: {error.strerror}"
        return ""

    def _go_on(self, notice: Notice, ranks: RankProcesses) -> None:
        if listeners := ranks.listeners():  # including those that installed a handler only now
            self.told = True
            with suppress(OSError):
                self._finished.unlink(missing_ok=True)  # it may be stopped in the middle of what follows its training
            ranks.tell(listeners)
            self._note("the script was sent SIGTERM")
            self._tell("notice-told", "the script was sent SIGTERM, which it catches")
        self._hear_of_saves()
        if not self._last and self._left_s <= self._reserve_s(notice) + CAUTION * self._parts.get(SAVED, 0.0):
            self._last = True
            self._write(notice)
        if "the last commit began" not in self._parts and self._left_s <= self._reserve_s(notice):
            self._note("the last commit began")
            self._keeper.hurry(for_good=True)
            self._hasten(True)

    def _hear_of_saves(self) -> None:
        """There are two where the notice is long enough: one at once, and a final one."""
        what = SAVED_AGAIN if SAVED in self._parts else SAVED
        if what in self._parts or not self._saved.exists():
            return
        self._note(what)
        self.idle_since = time.monotonic() if self._last else None
        self._keeper.hurry()
        self._tell("notice-saved", f"{what} {self._parts[what]:.2f} s after the notice{self._step()}")
        with suppress(OSError):
            self._saved.unlink()

    @property
    def _left_s(self) -> float:
        return self._until - time.monotonic()

    def _withdrawn(self, ranks: RankProcesses) -> None:
        self._current, self._withdrawn_at, self.idle_since = None, time.monotonic(), None
        self._keeper.calm()
        self._priority.restore()
        self._hasten(False)
        ranks.forget_who_was_told()
        for file in (self._file, self._saved):
            with suppress(OSError):
                file.unlink(missing_ok=True)
        self._tell("notice-withdrawn", "the notice was withdrawn: the script continues")

    def _note(self, what: str) -> None:
        if self._current:
            self._parts[what] = time.monotonic() - self._since

    def _reserve_s(self, notice: Notice) -> float:
        """Twice the duration of a commit, within limits."""
        return min(max(2 * self._keeper.longest_s, LEAST_RESERVE_S), notice.seconds * MOST_RESERVE)

    def _step(self) -> str:
        with suppress(OSError, ValueError, TypeError, AttributeError):
            step = json.loads(self._saved.read_text()).get("step")
            return f", at step {step}" if step is not None else ""
        return ""


# Notices from several sources: the server may send one as a drill, and the cloud may send one to the VM itself.


class NoticeBoard:
    """Any thread may post a notice. The one with the nearest deadline counts."""

    def __init__(self, see: Callable[[Notice | None], None]) -> None:
        self._see = see
        self._posted: dict[str, Notice | None] = {}
        self._lock = threading.Lock()

    def post(self, source: str, notice: Notice | None) -> None:
        """None: there is none, or it was withdrawn."""
        with self._lock:
            if notice == self._posted.get(source):
                return
            self._posted[source] = notice
            standing = [one for one in self._posted.values() if one]
            self._see(min(standing, key=lambda one: one.deadline, default=None))

    def posted(self, source: str) -> Notice | None:
        with self._lock:
            return self._posted.get(source)


PATIENCE_S = 30.0  # how long a script may continue after reaching the target, to save its work


class Goal:
    """One thread sees points, another acts.

    A script that catches SIGTERM gets one and ends by itself. Any other continues until it reports the metric again: by
    then it has saved whatever it saves after each report.
    """

    def __init__(self, target: Target | Rung | None, stop_file: Path, tell: Callable[[str, str], None]) -> None:
        self._target = target
        self._stop_file = stop_file
        self._tell = tell
        self._value = 0.0
        self._by: tuple[str, int] | None = None  # the source and the rank that reached it
        self._again = False
        self._told_at = 0.0
        self._signalled = False

    @property
    def reached(self) -> bool:
        return self._by is not None

    def __str__(self) -> str:
        return self._target.words(self._value) if self._target else ""

    def see(self, point: MetricPoint, source: str) -> None:
        value = self._target.measured(point.values, point.step) if self._target else None
        if value is None or self._target is None:
            return
        if self._by is None:
            if self._target.reached_by(value):
                self._value = value
                self._by = (source, point.rank)
        elif self._by == (source, point.rank):
            self._again = True

    def act(self, ranks: RankProcesses, stopping: Stopping) -> None:
        """Call it often, in the thread that watches the ranks."""
        if self._by is None:
            return
        if not self._told_at:
            self._told_at = time.monotonic()
            self._stop_file.touch()
            self._tell("target-reached", str(self))
            self._signalled = ranks.tell(ranks.listeners())
        passed_s = time.monotonic() - self._told_at
        if passed_s >= PATIENCE_S or (self._again and not self._signalled):
            stopping.ask(Outcome.TARGET_REACHED, str(self))


# Metrics that the job names in `stop_when` and `retention.best` and that the script has not reported. Pure.

MISSING_AFTER_S = 60.0  # between the first other metric and the warning about a missing one
SHARE = 0.1  # of the run's time limit, likewise
_MOST_NAMED = 6


class Awaited:
    """One thread sees points, another asks. Warns once per metric, and knows at the end which were never reported."""

    def __init__(self, job: Job, tell: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        by_field = {
            "stop_when": job.stop_when.metric if job.stop_when else "",
            "retention.best": (job.retention.best or "").removeprefix("-"),
        }
        self._awaited = {metric: field for field, metric in by_field.items() if metric}
        limits = [one for one in (job.time_limit, job.deadline) if one]
        self._patience_s = SHARE * min(limits) if limits else MISSING_AFTER_S
        self._tell = tell
        self._clock = clock
        self._begun = clock()
        self._names: dict[str, None] = {}
        self._first_at: float | None = None  # when the first metric was seen
        self._warned: set[str] = set()

    def begin(self) -> None:
        """The script starts now."""
        self._begun = self._clock()

    def see(self, point: MetricPoint) -> None:
        if self._awaited and point.values:
            self._names.update(dict.fromkeys(point.values))
            self._first_at = self._clock() if self._first_at is None else self._first_at

    def act(self) -> None:
        """Call it often."""
        if not self._awaited or len(self._warned) == len(self._awaited):
            return
        names = list(self._names)
        waited_s = self._clock() - (self._begun if self._first_at is None else self._first_at)
        for metric in self._awaited:
            if metric in self._names or metric in self._warned:
                continue
            if (names and _nearest(metric, names)) or waited_s >= self._patience_s:
                self._warned.add(metric)
                self._tell("metric-missing", f"warning: {self._words(metric, names)}")

    def missing(self) -> str:
        """For the last line; empty where every metric was reported."""
        names = list(self._names)
        return "; ".join(self._words(one, names) for one in self._awaited if one not in self._names)

    def _words(self, metric: str, names: list[str]) -> str:
        said = f"the script has not reported the metric `{metric}` of `{self._awaited[metric]}`"
        if near := _nearest(metric, names):
            return f"{said}; did you mean `{near}`?"
        known = ", ".join(f"`{name}`" for name in names[:_MOST_NAMED]) + (", …" if len(names) > _MOST_NAMED else "")
        return f"{said}; reported: {known}" if names else f"{said}, nor any other"


def _nearest(metric: str, names: list[str]) -> str:
    """What was probably meant: nearly the same name, or one with the same words."""
    plain = {name.lower().replace("/", "_").replace("-", "_"): name for name in names}
    found = difflib.get_close_matches(metric.lower().replace("/", "_").replace("-", "_"), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else ""

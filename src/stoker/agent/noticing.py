"""What a notice turns into: the file scripts look for, SIGTERM for those that catch it, and a last commit in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from stoker.agent.keeping import Keeper
from stoker.agent.ranks import Ranks
from stoker.model.orders import Notice

LEAST_RESERVE_S = 0.5  # kept free at the end of a notice, whatever commits have taken so far
MOST_RESERVE = 0.5  # of the notice

Tell = Callable[[str, str], None]


class Noticing:
    """`see` is for the thread that hears of notices; everything else is the main thread's."""

    def __init__(self, file: Path, saved: Path, keeper: Keeper, tell: Tell) -> None:
        self._file = file
        self._saved = saved
        self._keeper = keeper
        self._tell = tell
        self._announced: Notice | None = None
        self._current: Notice | None = None
        self._since = 0.0
        self._hurried = False
        self._library_saved = False
        self.told = False  # some script was asked to end because of a notice

    def see(self, notice: Notice | None) -> None:
        self._announced = notice

    def act(self, ranks: Ranks) -> None:
        """Called again and again while the ranks run."""
        announced = self._announced
        if announced != self._current:
            self._withdrawn() if announced is None else self._begin(announced, ranks)
        if self._current:
            self._go_on(self._current)

    def _begin(self, notice: Notice, ranks: Ranks) -> None:
        self._current, self._since = notice, time.monotonic()
        self._hurried = self._library_saved = False
        self._saved.unlink(missing_ok=True)
        words = {"kind": "evict", "at": notice.at.timestamp(), "deadline": notice.deadline.timestamp()}
        part = self._file.with_name(f"{self._file.name}.part")
        part.write_text(json.dumps(words))
        part.replace(self._file)
        listening = ranks.tell_those_who_listen()
        self.told = self.told or listening
        how = "the script was sent SIGTERM" if listening else "the script does not catch SIGTERM and goes on"
        self._tell("notice", f"notice of eviction in {self._left_s(notice):.1f} s: {how}")

    def _go_on(self, notice: Notice) -> None:
        if not self._library_saved and self._saved.exists():
            self._library_saved = True
            self._keeper.hurry()
            seconds = time.monotonic() - self._since
            self._tell("notice-saved", f"the script saved {seconds:.2f} s after the notice{self._step()}")
        if not self._hurried and self._left_s(notice) <= self._reserve_s(notice):
            self._hurried = True
            self._keeper.hurry()

    def _withdrawn(self) -> None:
        self._current = None
        self._file.unlink(missing_ok=True)
        self._saved.unlink(missing_ok=True)
        self._tell("notice-withdrawn", "the notice was withdrawn: the script goes on")

    def _left_s(self, notice: Notice) -> float:
        """By this node's clock at the time of the notice, then steadily: a clock that is set must not cost a save."""
        return notice.seconds - (time.monotonic() - self._since) - self._late_s(notice)

    def _late_s(self, notice: Notice) -> float:
        heard = datetime.now(UTC).timestamp() - (time.monotonic() - self._since)
        return min(max(heard - notice.at.timestamp(), 0.0), notice.seconds)

    def _reserve_s(self, notice: Notice) -> float:
        """Twice what the last commit took, within reason."""
        return min(max(2 * self._keeper.last_took_s, LEAST_RESERVE_S), notice.seconds * MOST_RESERVE)

    def _step(self) -> str:
        with suppress(OSError, ValueError, TypeError):
            step = json.loads(self._saved.read_text()).get("step")
            return f", at step {step}" if step is not None else ""
        return ""

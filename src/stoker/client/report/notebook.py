"""A run in a notebook: a card that shows its state, and one that updates itself during a wait."""

from __future__ import annotations

import html
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from stoker.errors import StokerError
from stoker.model.run.run import Run, RunState

if TYPE_CHECKING:
    from stoker.client.api.handle import RunHandle

_LINES = 10
_TICK_S = 0.5
_COLOURS = {RunState.SUCCEEDED: "#2e7d32", RunState.FAILED: "#c62828", RunState.CANCELLED: "#757575"}


def inside() -> bool:
    """Whether this is a notebook: a kernel runs us. IPython is not imported for that, because a kernel already has
    it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def card(facts: Run, now: datetime, lines: Sequence[str] = ()) -> str:
    """The run as HTML: its state, its duration, its last metrics, and its last lines of output."""
    colour = _COLOURS.get(facts.state, "#1565c0")
    rows = [
        f'<b>{html.escape(facts.name)}</b> <b style="color:{colour}">{facts.state}</b> {_elapsed(facts, now)}',
        html.escape(facts.reason),
        ", ".join(f"{html.escape(name)} = {summary.last:.4g}" for name, summary in facts.metrics.items()),
        f"outputs in {html.escape(facts.landed)}" if facts.landed else "",
    ]
    printed = html.escape("\n".join(lines))
    log = f'<pre style="margin:4px 0 0;font-size:smaller">{printed}</pre>' if lines else ""
    return f"<div>{'<br>'.join(row for row in rows if row)}{log}</div>"


class Live(AbstractContextManager[None]):
    """A card that is redrawn twice a second inside a `with` block, and once at its end.

    `display` adds HTML to the notebook and returns how to replace it.
    """

    def __init__(
        self, run: RunHandle, display: Callable[[str], Callable[[str], None]] | None = None, tick_s: float = _TICK_S
    ) -> None:
        self._run = run
        self._tick_s = tick_s
        self._display = display or _display
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._rest = b""  # of a line that is not complete yet
        self._over = threading.Event()

    def __enter__(self) -> None:
        self._replace = self._display(self._card())
        self._drawing = threading.Thread(target=self._draw, daemon=True)
        self._drawing.start()
        threading.Thread(target=self._read, daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._drawing.join()
        self._replace(self._card())

    def _draw(self) -> None:
        while not self._over.wait(self._tick_s):
            self._replace(self._card())

    def _read(self) -> None:
        with suppress(StokerError):  # the card then has no lines
            for piece in self._run.logs(follow=True):
                self._add(piece)
                if self._over.is_set():
                    return

    def _add(self, piece: bytes) -> None:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        # A progress bar overwrites its line: only its last state counts.
        self._lines.extend(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in whole)

    def _card(self) -> str:
        return card(self._run.facts, datetime.now(UTC), list(self._lines))


def _display(first: str) -> Callable[[str], None]:
    from IPython.display import HTML, display  # a notebook has it

    shown: Any = display(HTML(first), display_id=True)  # type: ignore[no-untyped-call]  # IPython's own lack
    return lambda text: shown.update(HTML(text))  # type: ignore[no-untyped-call]  # likewise


def _elapsed(facts: Run, now: datetime) -> str:
    seconds = max(0, int(((facts.ended_at or now) - (facts.started_at or facts.submitted_at)).total_seconds()))
    hours, rest = divmod(seconds, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"

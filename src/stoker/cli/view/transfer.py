"""Shows the progress of a transfer once it takes longer than a moment: one line on a terminal, events for programs."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stoker.cli.view import words
from stoker.cli.view.tables import clipped
from stoker.cli.view.terminal import is_terminal, redraw, show_json
from stoker.client.progress import TransferProgress, TransferState

_PATIENCE_S = 1.0
_LINE_S = 0.2
_EVENT_S = 1.0


@contextmanager
def watched(*, as_json: bool) -> Iterator[TransferProgress]:
    """A progress callback for the transfer. Silent if stderr is not a terminal, unless events were requested."""
    progress = TransferProgress()
    over = threading.Event()
    terminal = is_terminal(sys.stderr) and not as_json
    watching = threading.Thread(target=_watch, args=(progress, over, as_json), daemon=True)
    if terminal or as_json:
        watching.start()
    try:
        yield progress
    finally:
        over.set()
        if terminal or as_json:
            watching.join()


def line(at: TransferState) -> str:
    """`uploading  1,234 of 5,000 files  1.2 of 3.4 GB  35%  210 MB/s  12 s left`"""
    if not at.all_bytes:
        return f"{at.what}  {words.count(at.files, 'file')}" if at.files else f"{at.what} …"
    share = f"{100 * at.size_bytes // at.all_bytes}%"
    left = "" if at.left_s is None else f"{words.duration(at.left_s)} left"
    amount = f"{words.size(at.size_bytes)} of {words.size(at.all_bytes)}"
    rate = f"{words.size(round(at.bytes_per_s))}/s" if at.bytes_per_s else ""
    return "  ".join(filter(None, [at.what, f"{at.files:,} of {at.all_files:,} files", amount, share, rate, left]))


def _watch(progress: TransferProgress, over: threading.Event, as_json: bool) -> None:
    shown = False
    over.wait(_PATIENCE_S)
    while not over.is_set():
        if as_json:
            show_json({"event": "progress", **_facts(progress.standing())})
        else:
            shown = True
            columns = max(40, shutil.get_terminal_size().columns)
            redraw(clipped(line(progress.standing()), columns - 1), err=True)
        over.wait(_EVENT_S if as_json else _LINE_S)
    if shown:
        redraw("", err=True)


def _facts(at: TransferState) -> dict[str, object]:
    return {name: getattr(at, name) for name in TransferState.__slots__}

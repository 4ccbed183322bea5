"""`stoker tensorboard`: TensorBoard on runs while they train, wherever they train."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from stoker.cli.command import Command, json_option, run_arguments
from stoker.cli.view.terminal import INTERRUPTED, one_line, say, show
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.api.reading import OUTAGES
from stoker.client.report.eventlogs import EventLog
from stoker.errors import BadInput
from stoker.model.cause import Cause

_PORT = 6006
_LOOK_S = 2.0
_ANSWERS_S = 120.0  # at most, until it listens
_END_S = 5.0
_TERMINATED = 128 + signal.SIGTERM


@click.command(
    cls=Command,
    examples=[
        ("stoker tensorboard ants-7", "open TensorBoard on a run"),
        ("stoker tensorboard ants-6 ants-7 --port 7007", "compare two, at a port of your choice"),
    ],
)
@run_arguments()
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Its port [default: 6006, or a free one].")
@json_option()
def command(names: tuple[str, ...], port: int | None, as_json: bool) -> int:
    """Open TensorBoard on runs while they train.

    Shows all metrics of the runs, from whatever source, wherever they train: they are written to a temporary folder
    that is kept up to date. Requires the package `tensorboard` on this computer. It can be reached from this computer
    only, and ends with Ctrl-C.
    """
    program = _program()
    client = Client.connect()
    boards = {run.name: Board(run) for run in map(client.run, dict.fromkeys(names))}
    chosen = _free(port)
    with tempfile.TemporaryDirectory(prefix="stoker-tensorboard-") as top:
        folder = Path(top)
        try:
            with (
                _ended_by_signals(),
                _running([*program, *_options(folder, chosen)], folder / "tensorboard.log") as process,
            ):
                _serve(boards, folder / "runs", process, chosen, as_json=as_json)
        except KeyboardInterrupt:
            return INTERRUPTED
        except _Terminated:
            return _TERMINATED
    return 0


class Board:
    """One run, and how much of its metrics is written."""

    def __init__(self, run: RunHandle) -> None:
        self._run = run
        self._next = 0
        self._log: EventLog | None = None
        self.complete = False

    def follow(self, top: Path) -> None:
        """Writes what is new. After the last points of a run that has ended, nothing more comes."""
        self._log = self._log or EventLog(top / self._run.name)
        ended = self._run.refresh().state.ended
        points, self._next = self._run.new_metrics(self._next)
        self._log.add(points)
        self.complete = ended


def _serve(boards: dict[str, Board], top: Path, process: subprocess.Popen[bytes], port: int, *, as_json: bool) -> None:
    top.mkdir()
    begun, shown, troubled = time.monotonic(), False, False
    while process.poll() is None:
        for board in boards.values():
            try:
                if not board.complete:
                    board.follow(top)
                troubled = False
            except OUTAGES as error:
                if not troubled:
                    say(f"waiting: {one_line(error.message)}")
                troubled = True
        if not shown and _answers(port):
            url = f"http://localhost:{port}"
            show(json.dumps({"url": url}) if as_json else url)
            say(f"TensorBoard shows {', '.join(boards)}; Ctrl-C ends it")
            shown = True
        if not shown and time.monotonic() - begun > _ANSWERS_S:
            break
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S if shown else 0.2)
    log = (top.parent / "tensorboard.log").read_text(errors="replace").strip()
    last = one_line(log.splitlines()[-1]) if log else "it printed nothing"
    raise BadInput(f"TensorBoard ended: {last}", hint="tensorboard --version", cause=Cause.PACKAGE_MISSING)


def _program() -> list[str]:
    """Of this Python, or the first in PATH."""
    if find_spec("tensorboard"):
        return [sys.executable, "-m", "tensorboard.main"]
    found = shutil.which("tensorboard")
    if not found:
        raise BadInput(
            "TensorBoard is not installed on this computer", hint="pip install tensorboard", cause=Cause.PACKAGE_MISSING
        )
    return [found]


def _options(folder: Path, port: int) -> list[str]:
    where = ["--logdir", str(folder / "runs"), "--host", "127.0.0.1", "--port", str(port)]
    return [*where, "--reload_interval", "2"]


def _free(wanted: int | None) -> int:
    for port in (wanted,) if wanted else (_PORT, 0):
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                line.bind(("127.0.0.1", port))
                return int(line.getsockname()[1])
    raise BadInput(f"--port: port {wanted} is in use", hint="choose another, or omit --port", cause=Cause.VALUE_INVALID)


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


@contextmanager
def _running(words: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out, subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


class _Terminated(BaseException):
    """SIGTERM, or the terminal was closed."""


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """The folder is removed and TensorBoard ended after SIGTERM and SIGHUP, too."""

    def end(_number: int, _frame: Any) -> None:
        raise _Terminated

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

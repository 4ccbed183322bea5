"""`stoker logs`: the output of a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import click

from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.view import words
from stoker.cli.view.live import LiveView, Selection, announce, metric_news, why
from stoker.cli.view.printer import JsonPrinter, LogSource, Printer, TextPrinter
from stoker.cli.view.terminal import INTERRUPTED, one_line, say
from stoker.cli.view.words import ENDED
from stoker.client.api.client import Client
from stoker.client.api.handle import Log, RunHandle
from stoker.client.api.reading import OUTAGES, patiently
from stoker.errors import BadInput, NotFound, StokerError
from stoker.model.cause import Cause

_ALL = "all"
_TAIL_STEP_BYTES = 64 << 10


@click.command(
    cls=Command,
    examples=[
        ("stoker logs", "show the output of the newest run"),
        ("stoker logs -f ants-7 --since 10m", "show the last ten minutes, and follow"),
        ("stoker logs ants-7 --rank 1 --attempt 2 --raw", "show every byte of one rank"),
    ],
)
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@click.option("--rank", default=_ALL, metavar="N|all", help="Only this rank [default: all].")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="Only this attempt [default: all].")
@click.option("--since", metavar="TIME", help="Only newer output: `10m` ago, or a time such as `2025-01-31 14:00`.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Start with the last N lines of the newest attempt.")
@click.option("--raw", is_flag=True, help="Print every byte as written; on a terminal, without control sequences.")
@json_option()
def command(
    name: str,
    follow: bool,
    rank: str,
    attempt: int | None,
    since: str | None,
    tail: int | None,
    raw: bool,
    as_json: bool,
) -> int:
    """Show the output of a run.

    Attempts are shown one after another, separated by a line that says how the previous one ended. Progress bars are
    shown in their last state, except live on a terminal. With several ranks, each line starts with its `[rank]`.
    Without RUN: the newest.
    """
    client = Client.connect()
    run = client.run(name)
    start = words.moment(since, datetime.now(UTC)) if since else None
    there = len(run.facts.attempts)
    _check(run, attempt, there)
    first = attempt or (1 if tail is None else there or 1)
    last = attempt or there
    waits = Waiting(follow and not run.state.ended)
    logs = [log for log in patiently(run.log_list, waits) if first <= log.attempt <= max(last, 1)]
    ranks = _ranks(run, rank, logs)
    if raw and (len(ranks) > 1 or (not ranks and run.facts.job.processes != 1)):
        raise BadInput(
            "--raw supports one rank, but the run has several",
            hint=f"stoker logs {run.name} --raw --rank 0",
            cause=Cause.ONE_RANK_ONLY,
        )
    tailed = [log for log in logs if tail is not None and log.attempt == first and log.rank in ranks]
    offsets = {log.rank: patiently(partial(tail_offset, run, log, tail or 0), waits) for log in tailed}
    everyone = follow and rank == _ALL  # including ranks that have printed nothing yet
    wanted = Selection(first, None if everyone else ranks, start, offsets)
    printer: Printer = JsonPrinter() if as_json else TextPrinter(live=follow and not run.state.ended, raw=raw)
    if follow and last >= there:
        return _follow(LiveView(run, printer, partial(why, client), wanted))
    _show(run, printer, wanted, [log for log in logs if log.rank in ranks])
    return 0


class Waiting:
    """Prints once that something does not respond."""

    def __init__(self, patient: bool) -> None:
        self._patient = patient
        self._told = False

    def __call__(self, error: StokerError) -> bool:
        if self._patient and not self._told:
            say(f"waiting: {one_line(error.message)}")
        self._told = True
        return self._patient


def _check(run: RunHandle, wanted: int | None, there: int) -> None:
    if wanted and wanted > there:
        known = words.count(there, "attempt")
        raise NotFound(
            f"`{run.name}` has no attempt {wanted}: so far there are {known}",
            hint=f"stoker show {run.name}",
            cause=Cause.NO_SUCH_ATTEMPT,
        )


def _ranks(run: RunHandle, wanted: str, logs: Sequence[Log]) -> tuple[int, ...]:
    """Empty if all are requested and none is known yet."""
    known = sorted({log.rank for log in logs})
    if wanted == _ALL:
        return tuple(known)
    if not wanted.isdecimal():
        raise BadInput(f"--rank: found `{wanted}`, expected a number or `{_ALL}`", cause=Cause.VALUE_INVALID)
    if known and int(wanted) not in known:
        raise NotFound(
            f"`{run.name}` has no rank {wanted}: its ranks are {known[0]} to {known[-1]}", cause=Cause.NO_SUCH_RANK
        )
    return (int(wanted),)


def _follow(watch: LiveView) -> int:
    try:
        facts = watch.until_end()
    except KeyboardInterrupt:
        return INTERRUPTED
    watch.printer.event("ended", facts)
    watch.printer.note(f"{facts.name} {ENDED[facts.state]}" + (f": {one_line(facts.reason)}" if facts.reason else ""))
    return 0


def _show(run: RunHandle, printer: Printer, wanted: Selection, logs: Sequence[Log]) -> None:
    """One rank after another: a log does not tell the order of lines of different ranks."""
    printer.ranks = len({log.rank for log in logs})
    for number in dict.fromkeys(log.attempt for log in logs):
        if number > wanted.first:
            announce(run.facts, number, printer)
        for source in (LogSource(number, log.rank) for log in logs if log.attempt == number):
            offset = wanted.offsets.get(source.rank, 0)
            for data in run.logs(source.rank, number, since=wanted.since, offset=offset):
                printer.text(source, data)
            printer.finish(source)
    if run.facts.metrics:
        with suppress(*OUTAGES):  # what was printed is what was asked for
            for text in metric_news(run):
                printer.note(text)


def tail_offset(run: RunHandle, log: Log, lines: int) -> int:
    """Where the last N lines begin, found by reading ever larger tails of the log."""
    if lines == 0:
        return log.size_bytes
    step = _TAIL_STEP_BYTES
    while True:
        start = max(0, log.size_bytes - step)
        end = b"".join(run.logs(log.rank, log.attempt, offset=start))[: log.size_bytes - start]
        at = len(end) - 1 if end.endswith(b"\n") else len(end)
        for _ in range(lines):
            at = end.rfind(b"\n", 0, max(at, 0))
            if at < 0:
                break
        if at >= 0 or start == 0:
            return start + at + 1
        step *= 8

"""`stoker logs`: what a run has printed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click

from stoker.cli import words
from stoker.cli.command import Command, json_option, run_argument
from stoker.cli.failure import INTERRUPTED
from stoker.cli.feed import Broke, Finished, Printed, Source, printed
from stoker.cli.printer import JsonPrinter, Printer, TextPrinter
from stoker.cli.watch import Watch
from stoker.client.client import Client
from stoker.client.handle import Log, Run
from stoker.errors import BadInput, NotFound

_ALL = "all"
_TAIL_STEP_BYTES = 64 << 10


@click.command(
    cls=Command,
    examples=[
        ("stoker logs", "what the newest run has printed"),
        ("stoker logs -f ants-7 --since 10m", "the last ten minutes, then what follows"),
        ("stoker logs ants-7 --rank 1 --attempt 2 --raw", "every byte of one rank"),
    ],
)
@run_argument()
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--rank", default=_ALL, metavar="N|all", help="Only this rank.  [default: all]")
@click.option("--attempt", type=click.IntRange(1), metavar="N", help="This attempt instead of the newest.")
@click.option("--since", metavar="TIME", help="From then on: `10m` ago, or a time such as `2025-01-31 14:00`.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="From the last N lines on.")
@click.option("--raw", is_flag=True, help="Every byte as it was written, progress bars in all their states.")
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
    """Show what a run has printed.

    Progress bars are shown in their last state, except live on a terminal. Several ranks are told apart by a `[rank]`
    before each line. Without RUN: the newest.
    """
    run = Client.connect().run(name)
    start = words.moment(since, datetime.now(UTC)) if since else None
    number = attempt or len(run.facts.attempts) or 1
    if attempt and attempt > len(run.facts.attempts):
        known = words.count(len(run.facts.attempts), "attempt")
        raise NotFound(f"`{run.name}` has no attempt {attempt}: there are {known}", hint=f"stoker show {run.name}")
    logs = [log for log in run.log_list() if log.attempt == number]
    ranks = _ranks(run, rank, logs)
    if raw and (len(ranks) > 1 if ranks else rank == _ALL and _several(run)):
        raise BadInput("--raw shows one rank, and there are several", hint=f"stoker logs {run.name} --raw --rank 0")
    offsets = {log.rank: tail_offset(run, log, tail) for log in logs} if tail is not None else {}
    going = follow and not run.state.ended
    printer: Printer = JsonPrinter() if as_json else TextPrinter(live=going, raw=raw)
    if not follow or (attempt and attempt < len(run.facts.attempts)):
        _show(run, printer, [Source(number, one) for one in ranks], start, offsets)
        return 0
    watch = Watch(run, printer, first=number, ranks=ranks or None, since=start, offsets=offsets)
    try:
        printer.event("ended", watch.until_end())
    except KeyboardInterrupt:
        printer.note("")
        return INTERRUPTED
    printer.note(f"{run.name} {watch.facts.state}" + (f": {watch.facts.reason}" if watch.facts.reason else ""))
    return 0


def _ranks(run: Run, rank: str, logs: Sequence[Log]) -> list[int]:
    """Empty where all are wanted and none is known yet."""
    known = sorted(log.rank for log in logs)
    if rank == _ALL:
        return known
    if not rank.isdecimal():
        raise BadInput(f"--rank: found `{rank}`, expected a number or `all`")
    if known and int(rank) not in known:
        raise NotFound(f"`{run.name}` has no rank {rank}: they go from {known[0]} to {known[-1]}")
    return [int(rank)]


def _several(run: Run) -> bool:
    return run.facts.job.nodes > 1 or run.facts.job.processes != 1


def _show(
    run: Run, printer: Printer, sources: Sequence[Source], since: datetime | None, offsets: dict[int, int]
) -> None:
    """One rank after the other: nothing in a log tells when a line of one came before a line of another."""
    printer.ranks = len(sources)
    for source in sources:
        for happening in printed(run, source, follow=False, since=since, offset=offsets.get(source.rank, 0)):
            match happening:
                case Printed(_, data):
                    printer.text(source, data)
                case Finished():
                    printer.finish(source)
                case Broke(error):
                    raise error


def tail_offset(run: Run, log: Log, lines: int) -> int:
    """Where the last so many lines begin, found by reading ever larger ends of the log."""
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

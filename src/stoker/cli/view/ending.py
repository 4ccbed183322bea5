"""How a run ended: a line or two, and an exit code."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stoker.cli.view import words
from stoker.cli.view.safetext import one_line
from stoker.errors import BudgetReached
from stoker.model.run.run import Run, RunState

CANCELLED = 130
PAUSED = BudgetReached.exit_code
OWN_TROUBLE = 125  # distinct from exit codes of scripts, as with `docker run`


def exit_code(run: Run) -> int:
    """The script's own, if the script ended the run."""
    match run.state:
        case RunState.SUCCEEDED:
            return 0
        case RunState.CANCELLED:
            return CANCELLED
        case RunState.PAUSED:
            return PAUSED
        case _:
            return run.exit_code or OWN_TROUBLE


def lines(run: Run, here: Path) -> list[str]:
    """What to print when a run that was followed has ended. Paths are shown relative to `here`."""
    text = [_first(run) + _outputs(run, here), *_not_brought(run), *kept(run)]
    if run.land_problem:
        text.append(f"its outputs could not be downloaded: {one_line(run.land_problem)}")
        text.append(f"hint: retry with `stoker fetch {run.name}`")
    elif run.hint:
        text.append(f"hint: {one_line(run.hint)}")
        if run.state is RunState.FAILED and resumable(run):
            text.append(f"next: {next_command(run)}")
    else:
        text.append(f"next: {next_command(run)}")
    return text


def kept(run: Run) -> list[str]:
    """For a node that is kept: how to inspect and how to release it."""
    if run.kept_until is None:
        return []
    cost = f", at ${run.attempt.offer.usd_per_hour:.2f}/h" if run.attempt and run.attempt.offer else ""
    return [
        f"its node is kept until {run.kept_until.astimezone():%H:%M}{cost}",
        f"  stoker exec {run.name} -- COMMAND    inspect it",
        f"  stoker release {run.name}            release it now",
    ]


def next_command(run: Run) -> str:
    if run.state is not RunState.SUCCEEDED and resumable(run):
        return f"stoker resume {run.name}"
    if run.state is RunState.CANCELLED:
        return f"stoker rerun {run.name}"
    return f"stoker show {run.name} --plot" if run.metrics else f"stoker show {run.name}"


def resumable(run: Run) -> bool:
    """There is a checkpoint to resume from."""
    return run.state.ended and (run.start is not None or any(one.saved for one in run.attempts))


def took_s(run: Run) -> float | None:
    """From the script's start to its end."""
    if run.started_at is None or run.ended_at is None:
        return None
    return (run.ended_at - run.started_at).total_seconds()


def seen_from(path: str, here: Path) -> str:
    """The shortest form of a path."""
    try:
        short = os.path.relpath(path, here)
    except ValueError:  # another drive
        return path
    return path if short.startswith("..") else short


def _first(run: Run) -> str:
    seconds = took_s(run)
    time = words.duration(seconds) if seconds is not None else ""
    match run.state:
        case RunState.SUCCEEDED:
            reason = f", {one_line(run.reason)}" if run.reason else ""
            return f"{run.name} succeeded{f' in {time}' if time else ''}{reason}"
        case RunState.CANCELLED:
            return f"{run.name} was cancelled{f' after {time}' if time else ''}"
        case RunState.PAUSED:
            return f"{run.name} is paused: {one_line(run.reason)}; its work is saved, and it resumes where it stopped"
        case _:
            reason = f": {one_line(run.reason)}" if run.reason else ""
            return f"{run.name} failed{f' after {time}' if time else ''}{reason}{_code(run)}"


def _code(run: Run) -> str:
    """The exit code, if the reason does not contain it."""
    code = exit_code(run)
    return "" if re.search(rf"\b{code}\b", run.reason) else f" (exit code {code})"


def _outputs(run: Run, here: Path) -> str:
    amount = f"{words.count(run.output_files, 'file')}, {words.size(run.output_bytes)}" if run.output_files else ""
    checkpoint = _checkpoint(run) if run.brings_checkpoint else ""
    what = f"{'outputs' if run.output_files else 'its checkpoint'}"
    inside = ", ".join(filter(None, [amount, checkpoint if run.output_files else _amount(run)]))
    if not (amount or checkpoint):
        return ""
    return f"; {what} in {seen_from(run.landed, here)} ({inside})" if run.landed else f"; {what}: {inside}"


def _not_brought(run: Run) -> list[str]:
    """What is not where one would look for it."""
    text = []
    if run.checkpoint_files and not run.brings_checkpoint:
        text.append(
            f"its checkpoint ({_amount(run)}) is large: download it with `stoker fetch {run.name} --checkpoints`"
        )
    brought = run.output_files or run.brings_checkpoint
    if run.state is RunState.SUCCEEDED and not brought and not text:
        text.append(f"no outputs: it wrote nothing to `{one_line(run.job.outputs)}` or to its checkpoints")
    if run.clashes:
        names = ", ".join(one_line(name) for name in run.clashes)
        text.append(
            f"nodes wrote different files of the same name: {names}; those of other nodes are in node-1/ and so on"
        )
    if run.stray:
        names = ", ".join(one_line(name) for name in run.stray)
        how = (
            f"download them with `stoker fetch {run.name} --stray`" if run.stray_files else "they are too large to keep"
        )
        text.append(f"it wrote files outside its outputs: {names}; {how}")
    return text


def _checkpoint(run: Run) -> str:
    return f"and its checkpoint: {_amount(run)}"


def _amount(run: Run) -> str:
    return f"{words.count(run.checkpoint_files, 'file')}, {words.size(run.checkpoint_bytes)}"

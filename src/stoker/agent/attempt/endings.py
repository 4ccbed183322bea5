"""How an attempt ended, as outcome and message, and what to do where the end of the log reports a missing file.
Pure."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

from stoker.errors import StokerError, StoreDenied, StoreUnavailable
from stoker.model.cause import Cause
from stoker.model.job.fields import Problems
from stoker.model.job.job import Job
from stoker.model.job.sections import CheckpointPaths
from stoker.model.job.values import PlaceForData, as_input
from stoker.model.run.report import Outcome, RankEnd
from stoker.model.run.stacks import named_ranks

_MISSING_COMMAND = rb"(?:^|[:\s])([^\s:]+): (?:command )?not found\s*$"  # the message of shells
# How Python's `input()` and its debuggers end without a terminal.
_READS_A_TERMINAL = re.compile(
    rb"^(?:EOFError: EOF when reading a line|bdb\.BdbQuit)\s*\Z|\(i?Pdb\)\s*\Z", re.MULTILINE
)
_TERMINAL = (
    "it reads from a terminal, as `input()` and `breakpoint()` do, but a run has none:"
    " `stoker run --interactive` connects it to yours, on this computer"
)
# A traceback's last line, behind the name of the rank that torchrun's and PyTorch's own hooks put before each line.
_RAISED = re.compile(r"(?:\[rank\d+\]:\s)?([A-Za-z_][\w.]*(?:: .*)?)\s*")
_TRACEBACK = "Traceback ("
_LONGEST_WORDS = 160
FAILURES = (Outcome.FAILED, Outcome.BROKEN, Outcome.TIMED_OUT)  # after which a node may be kept


@dataclass(frozen=True, slots=True)
class Ending:
    outcome: Outcome
    exit_code: int | None = None
    message: str = ""
    hint: str = ""
    cause: str = ""  # a `Cause`, or the code of an error; empty: the outcome says it all
    needs_restart: bool = False  # the machine, before it can be used


class AttemptBroken(Exception):
    """The run could not be prepared or saved; a retry would not help."""

    def __init__(self, message: str, hint: str = "", *, cause: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.hint = hint


def broken(error: Exception) -> Ending:
    """For expected errors, the message; for anything else, a bug, also the traceback in the agent's own log. A store
    that cannot be used must be repaired by somebody: the run is retried on a machine that it gets afterwards."""
    if isinstance(error, StoreUnavailable | StoreDenied):
        return Ending(Outcome.CANCELLED, None, f"its store cannot be used: {error.message}", error.hint, error.code)
    if isinstance(error, AttemptBroken | StokerError):
        cause = error.cause or (error.code if isinstance(error, StokerError) else "")
        return Ending(Outcome.BROKEN, None, error.message, error.hint, cause)
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, OSError):
        return Ending(Outcome.BROKEN, None, f"the node could not execute the run: {error}", cause=Cause.NODE_FAILED)
    what = f"the agent failed: {type(error).__name__}: {error}"
    return Ending(Outcome.BROKEN, None, what, cause=Cause.AGENT_FAILED)


def exit_code(end: RankEnd) -> int:
    """As a shell would show it."""
    return 128 + end.signal if end.signal else end.exit_code or 0


def by_itself(
    ends: Mapping[int, RankEnd], failed: int, tail: bytes, *, out_of_memory: bool, terminal: bool = False
) -> Ending:
    """The ending where one rank failed by itself. `tail` is the end of its log; `terminal`: it had one."""
    end = ends[failed]
    code = exit_code(end)
    who = "the script" if len(ends) == 1 else f"rank {failed}"
    before = _left(ends, failed)
    if end.signal:
        message = f"{who} was killed by {_signal(end.signal)}{_why(end.signal, out_of_memory)}{before}"
        return Ending(
            Outcome.FAILED, code, message, _memory_hint(end.signal, out_of_memory), _killed(end.signal, out_of_memory)
        )
    if code == 127 and (missing := re.findall(_MISSING_COMMAND, tail, re.MULTILINE)):
        name = missing[-1].decode(errors="replace")
        hint = f"check the spelling of `{name}` in `run`, or install it"
        return Ending(Outcome.FAILED, code, f"command not found: `{name}`", hint, Cause.COMMAND_MISSING)
    message = f"{who} exited with code {code}"
    if 128 < code <= 128 + 64:
        message += f", as after {_signal(code - 128)}{_why(code - 128, out_of_memory)}"
    message += before
    asks = not terminal and _READS_A_TERMINAL.search(tail)
    hint = _TERMINAL if asks else _memory_hint(code - 128, out_of_memory)
    cause = _killed(code - 128, out_of_memory) if 128 < code <= 128 + 64 else Cause.EXIT_CODE
    return Ending(Outcome.FAILED, code, message, hint, Cause.NO_TERMINAL if asks else cause)


def raised(tail: str) -> str:
    """The exception of the last traceback in the log of a rank, as `ValueError: bad batch`; empty: there is none."""
    _, header, after = tail.rpartition(_TRACEBACK)
    found = (_RAISED.fullmatch(line) for line in after.splitlines()) if header else ()
    words = next((match[1] for match in found if match), "")
    return words if len(words) <= _LONGEST_WORDS else f"{words[:_LONGEST_WORDS]}…"


def _left(ends: Mapping[int, RankEnd], failed: int) -> str:
    """The ranks that had ended well before: one that waits for them in a collective fails. `ends` is in order."""
    before = sorted(takewhile(lambda rank: rank != failed, ends))
    well = [rank for rank in before if ends[rank].exit_code == 0]
    return f", after {named_ranks(well)} had ended with exit code 0" if well else ""


def _memory_hint(number: int, out_of_memory: bool) -> str:
    """A data loader process that was killed makes its script fail in many ways, so the exit code may not show it."""
    more = "use a smaller batch or fewer workers, or request more memory, such as `--set memory=32GB`"
    if out_of_memory:
        return f"the kernel's out-of-memory killer killed a process on this machine during the run: {more}"
    if number == signal.SIGKILL:
        return f"an unexpected SIGKILL usually comes from the kernel's out-of-memory killer: {more}"
    return ""


def _killed(number: int, out_of_memory: bool) -> Cause:
    return Cause.OUT_OF_MEMORY if number == signal.SIGKILL and out_of_memory else Cause.SIGNAL


def _why(number: int, out_of_memory: bool) -> str:
    return "; the kernel ran out of memory" if number == signal.SIGKILL and out_of_memory else ""


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def spell(seconds: float) -> str:
    """A length of time as a job file spells it: `1h`, `1h30m`, `90.5s`."""
    if seconds < 60 or seconds % 1:
        return f"{seconds:g}s"
    parts = []
    for size, letter in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, seconds = divmod(int(seconds), size)
        parts.append(f"{count}{letter}" if count else "")
    return "".join(parts)


_NOT_FOUND = re.compile(
    r"^(?:\[?[\w ]+\]?: )?(?:\w+\.)*FileNotFoundError: "
    r"(?:[^\n]*?(?<!\w)'([^'\n]{1,300})'|(\S{1,300}?) (?:was )?not found)",
    re.M,
)
_EXISTS = re.compile(r"(?i)\bexists?\b")


def hint(tail: bytes, job: Job, work: Path, code: Collection[str]) -> str:
    """Empty where the log reports neither. `work` is the working directory, `code` what was uploaded."""
    text = tail.decode(errors="replace")
    return _refused(text, job, work) or _missing(text, job, work, code)


def _refused(text: str, job: Job, work: Path) -> str:
    """Its last line says that a folder exists that Stoker created, or restored."""
    last = text.rstrip().rpartition("\n")[2][-600:]
    if not _EXISTS.search(last):
        return ""
    kept = CheckpointPaths(job.checkpoints).folders
    words = {_from_work(word.rstrip("/"), work) for word in re.split(r"[\s'\"`(),;:\[\]]+", last)}
    folder = next((one for one in (job.outputs, *kept) if one in words), "")
    if not folder:
        return ""
    if job.create_folders:
        return f"Stoker created `{folder}` before the script started: add `create_folders: false` to the job file"
    told = "name the argument with which the script resumes as `resume`"
    return f"`{folder}` was restored with its checkpoint: {told}, or another folder under `checkpoints`"


def _missing(text: str, job: Job, work: Path, code: Collection[str]) -> str:
    found = _NOT_FOUND.findall(text)
    path = _from_work("".join(found[-1]), work) if found else ""
    if not path or not _can_be_brought(path):
        return ""
    if CheckpointPaths(job.checkpoints).root(path) or f"{path}/".startswith(f"{job.outputs}/"):
        return ""  # the script did not write what it wants to read there
    place = str(PurePosixPath(path).parent)
    whole = not path.startswith("..") and place != "." and not any(one.startswith(f"{place}/") for one in code)
    line = f"`data: {{{as_input(place if whole else path)}}}`"
    read = f"`{path}` was not uploaded: if the script reads it and it exists on your computer, {line} in the job file"
    return f"{read} brings it. A folder that the script writes to is created if `outputs` or `checkpoints` names it"


def _from_work(path: str, work: Path) -> str:
    """Relative to the working directory; empty for paths elsewhere."""
    if os.path.isabs(path):  # noqa: PTH117  # text in, text out
        return os.path.relpath(path, work) if Path(path).is_relative_to(work) else ""
    return os.path.normpath(path) if path else ""


def _can_be_brought(path: str) -> bool:
    try:
        PlaceForData().read(path, "at")
    except Problems:
        return False
    return path not in (".", "..")

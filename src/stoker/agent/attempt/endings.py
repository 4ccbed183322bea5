"""How an attempt ended, as outcome and message."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from stoker.errors import StokerError, StoreDenied, StoreUnavailable
from stoker.model.cause import Cause
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

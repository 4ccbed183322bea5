"""Takes the stacks of the ranks' processes: by `faulthandler`, else by `py-spy`, else what the kernel shows.

Only a process that has asked for the signal gets it: it holds the file of our start-up hook open, and catches the
signal. Any other process would be killed by it.

Reads stacks as `faulthandler` and `py-spy` write them. Pure, except for the lines of the run's own code.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shutil import which

from stoker.agent.processes import family
from stoker.agent.processes.doctor import PROC, kernel_view
from stoker.model.run.stacks import (
    MOST_FRAMES,
    MOST_RANKS,
    MOST_STACKS,
    RankStacks,
    StackFrame,
    ThreadStack,
    collective,
    reading,
)

FILE = "/memfd:stoker-stacks-"  # as the open files of a process show it; the signal's number follows
ANSWER_S = 1.0  # for a process to write its stacks
QUIET_S = 0.05  # after which nothing more is written
SPY_S = 5.0
ALL_S = 6.0  # for everything: later ones are described by the kernel
MOST_PROCESSES = 24  # of a rank
MOST_FRAMES_IN_ALL = 1200  # of a node, so that its report stays small
_NONE = "no Python stack was available"
# Processes that only wait for the one that trains, by the files in their stacks.
_LAUNCHING = (
    "subprocess.py",
    "multiprocessing/resource_tracker.py",
    "torch/distributed/launcher/",
    "torch/utils/data/_utils/worker.py",
    "accelerate/commands/",
)


class StackTaker:
    """`path` is where to look for `py-spy`."""

    def __init__(self, work: Path, mask: Mask, path: str) -> None:
        self._work, self._mask, self._path = work, mask, path

    def take(self, ranks: Mapping[int, Sequence[int]]) -> tuple[RankStacks, ...]:
        """By rank. `ranks` are the processes of each, parents first."""
        until = time.monotonic() + ALL_S
        source = SourceLines(self._work, self._mask)
        spy = which("py-spy", path=self._path)
        found = [_Rank(rank, pids, source, spy).taken(until) for rank, pids in sorted(ranks.items())[:MOST_RANKS]]
        return tuple(_small(found, self._mask))


class _Rank:
    def __init__(self, rank: int, pids: Sequence[int], source: SourceLines, spy: str | None) -> None:
        self._rank, self._pids = rank, list(pids)[:MOST_PROCESSES]
        self._source, self._spy = source, spy
        self._why = ""  # the first reason why there is no stack

    def taken(self, until: float) -> RankStacks:
        stacks: list[ThreadStack] = []
        for pid in self._pids:
            threads = self._threads(pid) if time.monotonic() < until else []
            named = f" of process {pid}" if len(self._pids) > 1 else ""
            stacks += [replace(one, name=f"{one.name}{named}") for one in threads if one.frames]
        if stacks:
            return RankStacks(self._rank, tuple(training_first(stacks)))
        views = "; ".join(kernel_view(pid) for pid in self._pids[:4])
        return RankStacks(self._rank, note=f"{_NONE}: {self._why or 'it is not a Python process'}; {views}"[:1000])

    def _threads(self, pid: int) -> list[ThreadStack]:
        text = asked(pid)
        if text:
            return of_faulthandler(text, self._source)
        if text is None and "python" not in _program(pid):
            return []
        if not self._spy:
            unasked = "its Python has not loaded Stoker's start-up hook, and py-spy is not installed"
            self._why = self._why or (unasked if text is None else "the process did not answer")
            return []
        said, error = spied(self._spy, pid)
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            return of_py_spy(said, self._source)
        words = error.strip().splitlines() or ["it printed nothing"]
        self._why = self._why or f"py-spy failed: {words[-1][:200]}"
        return []


def asked(pid: int) -> str | None:
    """What the process writes on the signal; empty: it did not answer in time; None: it must not be asked."""
    file, number = _registered(pid)
    if file is None or not family.catches(pid, number):
        return None
    try:
        before = file.stat().st_size
        os.kill(pid, number)
        text = _written(file, before)
        if text:
            os.truncate(file, 0)
    except (OSError, ProcessLookupError):
        return ""
    return text


def _registered(pid: int) -> tuple[Path | None, int]:
    """The file of the start-up hook among the open files of the process, and the signal that is in its name."""
    with suppress(OSError):
        for one in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError, ValueError):
                target = str(one.readlink())
                if target.startswith(FILE):
                    return one, int(target[len(FILE) :].split()[0])
    return None, 0


def _written(file: Path, before: int) -> str:
    until, size, changed_at = time.monotonic() + ANSWER_S, before, 0.0
    while (now := time.monotonic()) < until:
        found = file.stat().st_size
        if found != size:
            size, changed_at = found, now
        elif changed_at and now - changed_at >= QUIET_S:
            break
        time.sleep(0.005)
    with file.open("rb") as dump:
        dump.seek(before)
        return dump.read(1 << 20).decode(errors="replace")


def spied(spy: str, pid: int) -> tuple[str, str]:
    """What `py-spy` prints of a process, and its errors. It does not stop the process meanwhile."""
    import subprocess  # here, because it is slow to import and few nodes have py-spy

    try:
        done = subprocess.run(
            [spy, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            capture_output=True, text=True, errors="replace", timeout=SPY_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"it took longer than {SPY_S:g} s"
    except OSError as error:
        return "", str(error)
    return done.stdout, done.stderr


def _program(pid: int) -> str:
    with suppress(OSError):
        return (PROC / str(pid) / "exe").readlink().name
    return ""


def training_first(stacks: list[ThreadStack]) -> list[ThreadStack]:
    """First the one that waits for other ranks, else the main thread of the first process that is not a launcher; then
    the workers that it may wait for."""

    def order(stack: ThreadStack) -> tuple[bool, bool, bool]:
        launches = any(part in frame.file for frame in stack.frames for part in _LAUNCHING)
        waits = launches and not reading(stack.frames)
        return not collective(stack.frames), waits, not stack.name.startswith("main thread")

    return sorted(stacks, key=order)[:MOST_STACKS]


def _small(ranks: list[RankStacks], mask: Mask) -> list[RankStacks]:
    """Within what a report may hold: first the stacks that matter, then as many of the others as fit."""
    room = MOST_FRAMES_IN_ALL - sum(len(one.frames) for one in ranks)
    found = []
    for one in ranks:
        kept = list(one.stacks[:1])
        for stack in one.stacks[1:]:
            if len(stack.frames) <= room:
                room -= len(stack.frames)
                kept.append(stack)
        if room < 0 and kept:
            kept = [replace(kept[0], frames=kept[0].frames[: max(MOST_FRAMES_IN_ALL // len(ranks), 1)])]
        found.append(RankStacks(one.rank, tuple(kept), mask(one.note)))
    return found


_THREAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)(.*)\(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_INSTALLED = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python3\.\d+t?)/")
_LARGEST_BYTES = 4 << 20  # of a source file
_LONGEST_NAME, _LONGEST_FILE, _LONGEST_CODE = 200, 400, 200

Mask = Callable[[str], str]


class SourceLines:
    """Shortens file names and adds lines of code: only those of files in the working directory, the run's own."""

    def __init__(self, work: Path, mask: Mask) -> None:
        self._tops = {f"{work}/", f"{work.resolve()}/"}
        self._mask = mask
        self._files: dict[str, list[str]] = {}

    def frame(self, function: str, file: str, line: int) -> StackFrame:
        own = next((file[len(top) :] for top in self._tops if file.startswith(top)), "")
        shown = own or _INSTALLED.sub("", file)
        code = self._line(file, line) if own and not _INSTALLED.match(file) else ""
        return StackFrame(
            self._mask(function)[:_LONGEST_NAME], self._mask(shown)[-_LONGEST_FILE:], max(line, 0), self._mask(code)
        )

    def _line(self, file: str, line: int) -> str:
        if file not in self._files:
            try:
                path = Path(file)
                small = path.is_file() and path.stat().st_size <= _LARGEST_BYTES
                self._files[file] = path.read_text(errors="replace").splitlines() if small else []
            except (OSError, ValueError):
                self._files[file] = []
        lines = self._files[file]
        return " ".join(lines[line - 1].split())[:_LONGEST_CODE] if 0 < line <= len(lines) else ""


def of_faulthandler(text: str, source: SourceLines) -> list[ThreadStack]:
    """The main thread, which Python writes last, comes first."""
    found: list[tuple[str, list[StackFrame]]] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            found.append((thread[1], []))
        elif (frame := _FRAME.match(line)) and found:
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1][1].append(source.frame(frame[3], frame[1], min(number, 1 << 31)))
    found.reverse()
    return [
        ThreadStack("main thread" if place == 0 else f"thread {name}", tuple(frames[:MOST_FRAMES]))
        for place, (name, frames) in enumerate(found)
    ]


def of_py_spy(text: str, source: SourceLines) -> list[ThreadStack]:
    """From `py-spy dump --json`. Raises ValueError where it is something else."""
    threads = json.loads(text)
    if not isinstance(threads, list) or not all(isinstance(one, dict) for one in threads):
        raise ValueError("not a list of threads")
    threads.sort(key=lambda one: one.get("thread_name") != "MainThread")
    return list(_spied(threads, source))


def _spied(threads: list[dict[str, object]], source: SourceLines) -> Iterator[ThreadStack]:
    for one in threads:
        frames = one.get("frames")
        read = [
            source.frame(str(each.get("name", "")), str(each.get("filename", "")), int(each.get("line") or 0))
            for each in (frames if isinstance(frames, list) else [])[:MOST_FRAMES]
        ]
        name = str(one.get("thread_name") or f"thread {one.get('thread_id')}")[:100]
        yield ThreadStack("main thread" if name == "MainThread" else name, tuple(read))

"""Reads stacks as `faulthandler` and `py-spy` write them. Pure, except for the lines of the run's own code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from stoker.model.run.stacks import MOST_FRAMES, StackFrame, ThreadStack

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

"""Several processes that put small files into a folder store: in one, Python's threads would wait for each other."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stoker.client.data.adopter import Answer
from stoker.client.data.folder import Found
from stoker.stores.transfer.files import side_by_side

LEAST_FILES = 1_000  # for fewer, starting a process takes longer than it saves
_FILES_EACH = 500  # that a process is worth
_MOST = 8
_AT_ONCE = 100  # files in one question


class _Group(NamedTuple):
    found: list[Found]
    size_bytes: int = 0


def adopt(root: Path, found: list[Found], take: Callable[[Found, Answer | None], None]) -> None:
    """`take` is called for each, by several threads. None: it has to be looked at."""
    groups = (_Group(found[at : at + _AT_ONCE]) for at in range(0, len(found), _AT_ONCE))
    with _processes(root, min(os.cpu_count() or 1, len(found) // _FILES_EACH, _MOST)) as idle:

        def work(group: _Group) -> None:
            process = idle.get()
            try:
                answers = _ask(process, [one.place for one in group.found])
            finally:
                idle.put(process)
            for one, answer in zip(group.found, answers, strict=True):
                take(one, answer)

        side_by_side(groups, work, None, idle.qsize())


@contextmanager
def _processes(root: Path, count: int) -> Iterator[queue.SimpleQueue[subprocess.Popen[bytes]]]:
    argv = [sys.executable, "-m", "stoker.client.data.adopter", str(root)]
    started = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(max(count, 1))]
    idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    try:
        for process in started:
            idle.put(process)
        yield idle
    finally:
        for process in started:
            process.kill()  # each has answered, or is not needed any more
            process.communicate()


def _ask(process: subprocess.Popen[bytes], places: list[str]) -> list[Answer | None]:
    """All None where the process is gone, or cannot do its work."""
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps(places).encode() + b"\n")
        process.stdin.flush()
        answers: list[Answer | None] = json.loads(process.stdout.readline())
        return answers
    except (OSError, ValueError):
        return [None] * len(places)

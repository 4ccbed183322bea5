"""Where the ranks that a launcher starts print to: each to a log of its own, as those that the agent starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stoker.agent.processes.launch import RankCommand


class RankPipes:
    """A named pipe for each rank of a launcher. They stay open until the launcher has ended, so that a rank that it
    restarts prints to the same log."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[int] = []

    def make(self, command: RankCommand) -> list[int]:
        """The read ends, in the order of the ranks. They belong to the caller."""
        return [self._make(self._folder / f"{local}.out") for local, _ in enumerate(command.ranks)]

    def close(self) -> None:
        """From here on whoever reads a pipe comes to its end, once no rank has it open."""
        held, self._held = self._held, []
        for fd in held:
            os.close(fd)

    def _make(self, path: Path) -> int:
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        out = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # otherwise it waits for a writer
        self._held.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        os.set_blocking(out, True)
        return out


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, text in files.items():
        fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)


def failures(folder: Path, ranks: Sequence[int], prefix: str) -> list[tuple[int, int]]:
    """Ranks that noted their failure, with their exit codes; the first to fail is the first."""
    found: list[tuple[int, int, int]] = []
    for rank in ranks:
        with suppress(OSError, ValueError):
            path = folder / f"{prefix}{rank}"
            found.append((path.stat().st_mtime_ns, rank, int(path.read_text())))
    return [(rank, code) for _, rank, code in sorted(found)]

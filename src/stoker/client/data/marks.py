"""The state of a job's data: its size, and a mark that changes when it does. File contents are not read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.errors import JobInvalid, Problem
from stoker.model.job.fields import nearest
from stoker.model.job.job import DataInput, Job

_MOST_FILES = 200_000  # counting that many takes about a second


@dataclass(frozen=True, slots=True)
class DataUse:
    """One of the job's inputs. A URL or dataset has no counts: the server finds them."""

    name: str
    where: str  # an absolute path, a URL, or `dataset <name>`; once a server has pinned it, its version
    local: bool = False  # a path on this computer
    files: int = 0
    size_bytes: int = 0
    newest: datetime | None = None
    counted: bool = False  # all files were counted: there were not too many

    @property
    def mark(self) -> str:
        """Changes when the data does: `diff` compares it. Empty if unknown."""
        if not self.local:
            return ""
        files = f"{self.files} files" if self.files != 1 else "1 file"
        newest = f", newest {self.newest.isoformat(timespec='seconds')}" if self.newest else ""
        return f"{'' if self.counted else 'more than '}{files}, {self.size_bytes} bytes{newest}"


def look(job: Job, folder: Path) -> tuple[DataUse, ...]:
    """Every input of the job. Raises JobInvalid with all paths that do not exist."""
    uses: list[DataUse] = []
    problems: list[Problem] = []
    for name, given in job.data.items():
        try:
            uses.append(_look(name, given, folder))
        except OSError as error:
            problems.append(_not_there(name, given.path or "", folder, error))
    if problems:
        raise JobInvalid(problems)
    return tuple(uses)


def look_again(name: str, path: str) -> DataUse:
    """An input whose path is already known. Raises OSError if it is gone."""
    return _counted(name, Path(path))


def is_url(path: str) -> bool:
    return "://" in path


def _look(name: str, given: DataInput, folder: Path) -> DataUse:
    if given.dataset:
        return DataUse(name, f"dataset {given.dataset}")
    path = given.path or ""
    if path.startswith("file://"):
        path = unquote(urlsplit(path).path)
    if is_url(path):
        return DataUse(name, path)
    # Not resolved: a link that is later moved to newer data should stay a link.
    return _counted(name, Path(os.path.normpath(folder / Path(path).expanduser())).absolute())


def _counted(name: str, path: Path) -> DataUse:
    files = size = 0
    newest = 0.0
    for seen in _files(path):
        files += 1
        size += seen.st_size
        newest = max(newest, seen.st_mtime)
        if files == _MOST_FILES:
            break
    at = datetime.fromtimestamp(newest, UTC) if files else None
    return DataUse(name, str(path), True, files, size, at, files < _MOST_FILES)


def _files(path: Path) -> Iterator[os.stat_result]:
    """Raises OSError if the path itself cannot be read; unreadable files inside are skipped."""
    if not path.is_dir():
        yield path.stat()
        return
    waiting = [os.scandir(path)]
    while waiting:
        with waiting.pop() as entries:
            for entry in entries:
                try:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(os.scandir(entry.path))
                    elif entry.is_file():
                        yield entry.stat()
                except OSError:
                    continue


def _not_there(name: str, path: str, folder: Path, error: OSError) -> Problem:
    full = Path(path).expanduser()
    full = full if full.is_absolute() else folder / full
    reason = "" if isinstance(error, FileNotFoundError) else f": {(error.strerror or str(error)).lower()}"
    try:
        near = nearest(full.name, os.listdir(full.parent))  # noqa: PTH208  # the names are all that is wanted
    except OSError:
        near = ""
    near = str(Path(path).parent / near) if near else ""
    return Problem(f"data.{name}", f"`{path}`{reason}", f"a file or folder that exists in {folder}", near)

"""The job file: YAML to a Job, every problem with its line and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import JobInvalid
from stoker.model.job import Job


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job and the file it came from."""

    job: Job
    path: Path

    @property
    def folder(self) -> Path:
        """What relative paths of the job start from."""
        return self.path.parent

    def locate(self, invalid: JobInvalid) -> JobInvalid:
        """The same problems with file, line and column, in the order of the file."""
        raise NotImplementedError


def read(path: Path, sets: Sequence[str] = ()) -> JobFile:
    """The job in a file, with `--set key=value` settings applied on top.

    Raises BadInput where there is no file to read, and JobInvalid with everything that is wrong in it.
    """
    raise NotImplementedError

"""The job a command line names: a file, and what `--set` and `--on` change in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stoker.client import jobfile
from stoker.client.jobfile import JobFile
from stoker.errors import JobInvalid


def read(file: str, sets: Sequence[str], on: str) -> JobFile:
    """A folder stands for the `stoker.yaml` in it."""
    path = Path(file)
    if path.is_dir():
        path = path / "stoker.yaml"
    return jobfile.read(path, [*sets, f"on={on}"] if on else sets)


@contextmanager
def located(source: JobFile) -> Iterator[None]:
    """Whoever finds the job wrong in here, a server too, is told of with file, line and column."""
    try:
        yield
    except JobInvalid as error:
        raise source.locate(error) from None

"""A folder or a file that appears when it is complete, or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Gives a place to work in, which becomes `folder` at the end. If somebody else was faster, theirs stays."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        place = Path(scratch) / folder.name
        place.mkdir()
        yield place
        try:
            place.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Gives a path to write to, which becomes `file` at the end; until then the old one stays."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{os.getpid()}-{file.name}")  # Keras wants the ending
    try:
        yield new
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)

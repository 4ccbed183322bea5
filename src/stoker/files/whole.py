"""Atomic file writes: to a temporary file in the same folder, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A place beside `path` to write to, which takes its name at the end. A kill at any moment leaves the old file or
    the new one; a failure leaves nothing beside it. Not made to survive a power failure."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Replaces what was there. `mode` is what the user's umask may narrow."""
    content = data.encode() if isinstance(data, str) else data
    with (
        replacing(path) as part,
        os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        file.write(content)

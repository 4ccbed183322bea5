"""Files that are there as a whole or not at all: written beside their place, then renamed."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes | str, *, mode: int = 0o666) -> None:
    """Replaces what was there. A kill at any moment leaves the old file or the new one; a failure leaves nothing beside
    it. `mode` is what the user's umask may narrow; not made to survive a power failure."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")
    content = data.encode() if isinstance(data, str) else data
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise

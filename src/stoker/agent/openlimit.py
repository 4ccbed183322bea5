"""How many files this process may hold open, raised for as long as they are needed."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SPARE = 128  # open files that the rest of the agent may need


@contextmanager
def room_for(files: int) -> Iterator[int]:
    """How many files can be held open. The limit is raised for that, and not for good: scripts started later have
    the usual one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and wanted > soft:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        yield files if now == resource.RLIM_INFINITY else max(now - SPARE, 0)
    finally:
        if now != soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

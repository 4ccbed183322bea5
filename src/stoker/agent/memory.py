"""Whether the kernel killed something because memory ran out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def kills() -> int:
    """How many processes were killed for lack of memory, on this machine or in this container; 0 if nobody counts."""
    counts = [_count(Path("/proc/vmstat"))]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                counts.append(_count(Path(f"/sys/fs/cgroup{path}/memory.events")))
            elif "memory" in controllers.split(","):
                counts.append(_count(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control")))
    return sum(counts)


def _count(file: Path) -> int:
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0

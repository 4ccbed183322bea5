"""Whether a folder is on a file system that other computers share, and whether locks there hold between them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_TABLE = Path("/proc/self/mountinfo")
_SHARED = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
    | {"fuse.glusterfs", "panfs", "pvfs2", "smbfs", "wekafs", "virtiofs"}
)
_ONE_COMPUTER = frozenset({"nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"})


@dataclass(frozen=True, slots=True)
class MountedAt:
    kind: str
    options: frozenset[str] = frozenset()

    @property
    def is_shared(self) -> bool:
        return self.kind in _SHARED

    @property
    def local_locks(self) -> str:
        """The option by which locks are known to one computer alone; empty: they hold between all."""
        return next(iter(sorted(self.options & _ONE_COMPUTER)), "") if self.is_shared else ""


def mounted_at(path: Path, table: Path = _TABLE) -> MountedAt:
    """Of a kind without a name where the kernel does not tell, as on other systems than Linux."""
    try:
        rows = [line.split() for line in table.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return MountedAt("")
    best, found, wanted = -1, MountedAt(""), path.absolute().resolve()
    for row in rows:
        if "-" not in row[6:] or len(row) < 10:
            continue
        place = Path(re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), row[4]))
        if wanted.is_relative_to(place) and len(place.parts) >= best:  # the last one mounted over another counts
            kind, _, own = row[row.index("-", 6) + 1 :][:3]
            best, found = len(place.parts), MountedAt(kind, frozenset({*row[5].split(","), *own.split(",")}))
    return found

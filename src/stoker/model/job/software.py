"""What a run takes along of the Python that submits it, to nodes that do not have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FOLDER = ".stoker"  # in the snapshot; whatever a source has of that name is not sent
LIST = f"{FOLDER}/packages.txt"  # exact versions, one on each line, as pip and uv read them
WHEELS = "wheels"  # beside the list: packages that no index has


@dataclass(frozen=True, slots=True)
class Software:
    """With no packages: the script needs nothing but Python, or the job names its own list."""

    python: str  # a version, such as `3.11`, or what the job names
    packages: int = 0  # how many the list in the snapshot names
    size_bytes: int = 0  # of them, as installed where they come from
    # Where uv is for machines that lack it: a processor's name to the URL of a wheel, which ends in `#sha256=…`.
    uv: Mapping[str, str] = field(default_factory=dict)


def is_ours(path: str) -> bool:
    """A path in a snapshot that no source has, because it holds what was taken along."""
    return path == FOLDER or path.startswith(f"{FOLDER}/")

"""An environment that is kept in a store: what it is, and its files in packs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from stoker.model.run.report import MOST_PACKAGES, Version
from stoker.model.snapshot import Entry
from stoker.model.untrusted import Most

COMPLETE = ".stoker-complete"  # in a venv, written last: one without it is incomplete
ONLY_BUILDS = "-environment"  # ends the name of an experiment whose runs do nothing else
SHORT = 8  # digits of an id that people read
HEAD_BYTES = 1 << 20
LIST_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class BuiltEnvironment:
    """`id` depends on all that is in it: its lock, its Python and its platform. Written once its files are there."""

    id: Annotated[str, Most(64)]
    name: Annotated[str, Most(200)]  # of the experiment that it was built for
    source: Annotated[str, Most(400)]  # the file that lists its packages, or what it is made of
    python: Annotated[str, Most(40)]
    platform: Annotated[str, Most(200)]
    at: datetime
    packages: Annotated[Mapping[str, Version], Most(MOST_PACKAGES, 200)] = field(default_factory=dict)
    built_s: float = 0.0
    files: int = 0
    size_bytes: int = 0
    listed: Annotated[str, Most(64)] = ""  # the hash of its `PackedFiles`; empty: it is on one node only

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.id[:SHORT]}"


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """Entry by entry: where its content starts in which pack, and when it was last changed. Those of links are 0."""

    entries: tuple[Entry, ...]
    packs: tuple[str, ...]  # names
    pack: tuple[int, ...]
    start: tuple[int, ...]
    changed_ns: tuple[int, ...]

    @property
    def is_sound(self) -> bool:
        """Its parts belong together."""
        count = len(self.entries)
        whole = len(self.pack) == len(self.start) == len(self.changed_ns) == count
        named = all(re.fullmatch(r"[0-9a-f]{64}", one) for one in self.packs)
        return whole and named and all(one < max(len(self.packs), 1) for one in self.pack)

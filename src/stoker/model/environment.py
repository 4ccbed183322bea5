"""Environments: one that is kept in a store, with its files in packs, and the settings of uv and pip, which are the
same where packages are chosen and where they are installed."""

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
    image: Annotated[str, Most(64)] = ""  # the id of an image that was built; empty: it is a venv

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.id[:SHORT]}"


@dataclass(frozen=True, slots=True)
class PackedFiles:
    """Entry by entry: where its content starts in which pack, and when it was last changed. Those of links are 0.

    An image has no entries: its packs are its manifest, its configuration and its layers.
    """

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


_PIP_FOR_UV = {  # pip's setting, uv's, and uv's separator
    "PIP_FIND_LINKS": ("UV_FIND_LINKS", ","),
    "PIP_INDEX_URL": ("UV_INDEX_URL", " "),
    "PIP_EXTRA_INDEX_URL": ("UV_EXTRA_INDEX_URL", " "),
}
_UV_INDEXES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL")
_UNWANTED = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON")


def tool_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of uv and pip: settings of pip also apply to uv, where it has none of its own."""
    settings = {name: value for name, value in environ.items() if name not in _UNWANTED}
    own_index = any(name in settings for name in _UV_INDEXES)
    for pip, (uv, separator) in _PIP_FOR_UV.items():
        if pip in settings and uv not in settings and not (own_index and uv in _UV_INDEXES):
            settings[uv] = separator.join(settings[pip].split())
    return settings

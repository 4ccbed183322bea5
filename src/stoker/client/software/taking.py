"""What a run takes along of the submitting Python: exact versions, and wheels of what no index has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.packages import PYTHON, packages_of
from stoker.client.settings import Settings
from stoker.client.software.choosing import Choice
from stoker.client.software.installed import Installed
from stoker.client.software.markers import cloud
from stoker.client.software.packing import Packing
from stoker.client.software.resolving import uv_wheels
from stoker.client.tree import Tree
from stoker.model import software
from stoker.model.job import Job, Packages
from stoker.model.software import Software
from stoker.stores.unused import mark_used


@dataclass(frozen=True, slots=True)
class Along:
    """`lines` are those of the list; `wheels` are files of this computer, by their path in the snapshot."""

    software: Software
    lines: tuple[str, ...] = ()
    wheels: Mapping[str, Path] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # with versions, the largest first
    left_out: int = 0  # packages of the submitting Python that stay
    notes: tuple[str, ...] = ()
    is_least: bool = False  # the index does not say how large what the machine needs besides is

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def take(job: Job, tree: Tree, settings: Settings) -> Along:
    """Raises JobInvalid where a package that the script needs cannot come along."""
    version = packages_of(settings.python).get(PYTHON, "")
    python = job.environment.python or ".".join(version.split(".")[:2])
    place = settings.home.software
    place.mkdir(parents=True, exist_ok=True)
    uv = uv_wheels(place, settings.for_tools())
    if not job.environment.is_taken_along:
        return Along(Software(python, uv=uv))
    installed = Installed.of(settings.python)
    choice = Choice(job, tree, settings, installed, cloud(version or "3"))
    chosen = choice.all() if job.environment.packages is Packages.ALL else choice.imported()
    packing = Packing(chosen, choice, settings)
    more = packing.resolve(python if "/" not in python else "", job.env)
    sizes = {name: one.size_bytes for name, one in packing.chosen.items()}
    lines = (*packing.lines.values(), *more)
    return Along(
        Software(python, len(lines), packing.download_bytes or sum(sizes.values()), uv),
        tuple(sorted(lines)),
        packing.wheels,
        tuple(f"{name} {packing.chosen[name].public}" for name in sorted(sizes, key=lambda name: -sizes[name])),
        len(installed.by_name) - len(packing.chosen),
        tuple(choice.notes),
        bool(more and not packing.download_bytes),
    )


def files(taken: Along, place: Path) -> dict[str, Path]:
    """What comes into the snapshot, by its path there. Nothing where the script needs nothing but Python."""
    if not taken.lines:
        return {}
    import hashlib  # a run on this computer has no use for it here

    data = taken.text.encode()
    listed = place / f"{hashlib.sha256(data).hexdigest()[:32]}.txt"
    if not listed.exists():
        place.mkdir(parents=True, exist_ok=True)
        part = listed.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(data)
        part.replace(listed)
    mark_used(listed)
    return {software.LIST: listed, **taken.wheels}

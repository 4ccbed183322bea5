"""What a run takes along of the submitting Python: exact versions, and wheels of what no index has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.settings import Settings
from stoker.client.software.choosing import Choice
from stoker.client.software.installed import Distribution, Installed
from stoker.client.software.markers import cloud, normal
from stoker.client.software.packages import PYTHON, packages_of
from stoker.client.software.resolving import Resolved, resolve, uv_wheels
from stoker.client.software.wheels import NotSent, wheel_of
from stoker.client.source.tree import Tree
from stoker.model.job import software
from stoker.model.job.job import Job, Packages
from stoker.model.job.software import Software
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


# Packages as lines of a list: what an index has by its version, the rest by a wheel that comes along.

_MOST_PACKED = 50_000_000  # bytes of a package that an index lacks: what is larger is rather fetched elsewhere
_TRIES = 3


class Packing:
    """`chosen` loses what cannot come along; `choice` hears of that."""

    def __init__(self, chosen: dict[str, Distribution], choice: Choice, settings: Settings) -> None:
        self.chosen = dict(chosen)
        self.lines: dict[str, str] = {}
        self.wheels: dict[str, Path] = {}
        self.download_bytes = 0
        self._choice = choice
        self._settings = settings
        for name, one in chosen.items():
            if one.origin:
                self._pack(one)
            else:
                self.lines[name] = f"{name}=={one.public}"

    def resolve(self, python: str, env: Mapping[str, str]) -> list[str]:
        """What a machine installs besides, as it differs from this computer. What no index has is packed."""
        if not self.lines:
            return []
        found = self._ask(python, env)
        for _ in range(_TRIES):
            lost = [self.chosen[name] for name in map(normal, found.absent) if name in self.chosen]
            lost = [
                one for one in lost if not one.origin and one.size_bytes < _MOST_PACKED and self._pack(one, sure=False)
            ]
            if not lost:
                break
            found = self._ask(python, env)
        self._tell(found)
        self.download_bytes = found.size_bytes
        more = [name.split(" ", 1) for name in found.names if " " in name]
        here = "sys_platform == 'linux' and platform_machine == 'x86_64'"
        return [f"{name}=={version} ; {here}" for name, version in more if normal(name) not in self.lines]

    def _ask(self, python: str, env: Mapping[str, str]) -> Resolved:
        wheels = {path.removeprefix(f"{software.FOLDER}/"): file.as_uri() for path, file in self.wheels.items()}
        lines = [
            f"{head} @ {wheels.get(place, place)}" if place else head
            for head, _, place in (line.partition(" @ ") for line in sorted(self.lines.values()))
        ]
        return resolve(lines, python, self._settings.home.software, self._settings.for_tools(), env)

    def _tell(self, found: Resolved) -> None:
        notes = self._choice.notes
        for name in found.absent:
            notes.append(f"`{name}` has no version in the package index that a machine could install: {found.reason}")
        if found.built:
            notes.append(f"no wheel fits of {', '.join(found.built)}: the machine has to build it, with what it has")
        if not found.checked:
            notes.append(f"the package index could not be asked whether a machine gets all of it: {found.reason}")

    def _pack(self, one: Distribution, *, sure: bool = True) -> bool:
        """With `sure` off, a package that cannot be packed stays as it is."""
        try:
            wheel = wheel_of(one, self._settings.home.software, self._settings.for_tools())
        except NotSent as reason:
            if not sure:
                return False
            if line := _from_repository(one):
                self.lines[one.name] = line
            else:
                self._choice.refuse(one, str(reason))
                del self.chosen[one.name]
            return False
        name = f"{software.WHEELS}/{wheel.name}"
        self.lines[one.name] = f"{one.name} @ {name}"
        self.wheels[f"{software.FOLDER}/{name}"] = wheel
        return True


def _from_repository(one: Distribution) -> str:
    """The very commit, for machines that can reach it: only what is compiled has to be built there."""
    info, url = one.origin.get("vcs_info"), str(one.origin.get("url", ""))
    if not isinstance(info, dict) or not url.startswith("https://") or "@" in url:
        return ""
    return f"{one.name} @ {info.get('vcs', 'git')}+{url}@{info.get('commit_id', '')}"

"""What a run takes from the submitting Python: exact versions, and wheels of packages that no index has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.client.settings import ClientSettings
from stoker.client.software.choosing import PackageChoice
from stoker.client.software.installed import Distribution, Installed
from stoker.client.software.packages import PYTHON, cloud, normal, packages_of
from stoker.client.software.wheels import NotSent, Resolved, resolve, uv_wheels, wheel_of
from stoker.client.source.tree import SourceTree
from stoker.files import write_whole
from stoker.model.job import sections
from stoker.model.job.job import Job, Packages
from stoker.model.job.sections import Software
from stoker.stores.trees.clearing import mark_used


@dataclass(frozen=True, slots=True)
class Along:
    """`lines` are those of the list; `wheels` are local files, by their path in the snapshot."""

    software: Software
    lines: tuple[str, ...] = ()
    wheels: Mapping[str, Path] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # with versions, the largest first
    left_out: int = 0  # packages of the submitting Python that are not included
    notes: tuple[str, ...] = ()
    is_least: bool = False  # the index does not report the size of the machine's additional packages

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def take(job: Job, tree: SourceTree, settings: ClientSettings) -> Along:
    """Raises JobInvalid if a package that the script needs cannot be included."""
    version = packages_of(settings.python).get(PYTHON, "")
    python = job.environment.python or ".".join(version.split(".")[:2])
    place = settings.home.software
    place.mkdir(parents=True, exist_ok=True)
    uv = uv_wheels(place, settings.for_tools())
    if not job.environment.is_taken_along:
        return Along(Software(python, uv=uv))
    installed = Installed.of(settings.python)
    choice = PackageChoice(job, tree, settings, installed, cloud(version or "3"))
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
    """What is added to the snapshot, by its path there. Nothing if the script needs only Python."""
    if not taken.lines:
        return {}
    import hashlib  # not needed for a run on this computer

    data = taken.text.encode()
    listed = place / f"{hashlib.sha256(data).hexdigest()[:32]}.txt"
    if not listed.exists():
        place.mkdir(parents=True, exist_ok=True)
        write_whole(listed, data)
    mark_used(listed)
    return {sections.LIST: listed, **taken.wheels}


# Packages as lines of a list: by version if an index has them, else by a wheel that is uploaded.

_MOST_PACKED = 50_000_000  # bytes of a package that no index has: a larger one should be downloaded elsewhere
_TRIES = 3


class Packing:
    """`chosen` loses packages that cannot be included; `choice` is informed."""

    def __init__(self, chosen: dict[str, Distribution], choice: PackageChoice, settings: ClientSettings) -> None:
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
        """What a machine installs additionally, because it differs from this computer. What no index has is packed."""
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
        wheels = {path.removeprefix(f"{sections.FOLDER}/"): file.as_uri() for path, file in self.wheels.items()}
        lines = [
            f"{head} @ {wheels.get(place, place)}" if place else head
            for head, _, place in (line.partition(" @ ") for line in sorted(self.lines.values()))
        ]
        return resolve(lines, python, self._settings.home.software, self._settings.for_tools(), env)

    def _tell(self, found: Resolved) -> None:
        notes = self._choice.notes
        for name in found.absent:
            notes.append(f"`{name}` has no version in the package index that a machine can install: {found.reason}")
        if found.built:
            notes.append(
                f"no suitable wheel for {', '.join(found.built)}: the machine has to build it with its own tools"
            )
        if not found.checked:
            notes.append(
                f"could not check with the package index whether a machine can install everything: {found.reason}"
            )

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
        name = f"{sections.WHEELS}/{wheel.name}"
        self.lines[one.name] = f"{one.name} @ {name}"
        self.wheels[f"{sections.FOLDER}/{name}"] = wheel
        return True


def _from_repository(one: Distribution) -> str:
    """The exact commit, for machines that can reach it: only compiled code has to be built there."""
    info, url = one.origin.get("vcs_info"), str(one.origin.get("url", ""))
    if not isinstance(info, dict) or not url.startswith("https://") or "@" in url:
        return ""
    return f"{one.name} @ {info.get('vcs', 'git')}+{url}@{info.get('commit_id', '')}"

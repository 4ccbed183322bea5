"""Which packages of the submitting Python a run needs, by what its command starts and imports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from stoker.client.settings import Settings
from stoker.client.software.closure import closure, imported, named_beside, unseen
from stoker.client.software.imports import Import, imports_in, imports_of, module_files
from stoker.client.software.installed import Distribution, Installed
from stoker.client.software.markers import normal
from stoker.client.software.starts import Starts, starts_of
from stoker.client.tree import Tree
from stoker.errors import JobInvalid, Problem
from stoker.model.fields import nearest
from stoker.model.job import Job

_MOST_NAMED = 8


class Choice:
    """Which packages come along. `notes` says what a user should know of it."""

    def __init__(
        self, job: Job, tree: Tree, settings: Settings, installed: Installed, surroundings: Mapping[str, str]
    ) -> None:
        self._job = job
        self._root = tree.root
        self._paths = [entry.path for entry in tree.snapshot.entries]
        self._settings = settings
        self._installed = installed
        self._surroundings = surroundings
        self._needed: set[str] = set()
        self.notes: list[str] = []

    def refuse(self, one: Distribution, reason: str) -> None:
        """A package cannot come along: where the script cannot begin without it, nothing is begun."""
        if one.name not in self._needed:
            self.notes.append(f"{reason}; the run has to do without it")
            return
        expected = "packages that can come along; a requirements file as `environment` may name something else instead"
        raise JobInvalid([Problem("environment", reason, expected)])

    def all(self) -> dict[str, Distribution]:
        names = dict.fromkeys(self._installed.by_name, frozenset[str]())
        return closure(names, self._installed, self._surroundings)

    def imported(self) -> dict[str, Distribution]:
        starts = starts_of(self._job, self._root, self._paths)
        imports = self._imports(starts)
        known, lost = imported(imports, self._installed)
        needed = {owner.name for one in imports if one.needed for owner in known.get(one.name, ())}
        self._needed = set(closure(dict.fromkeys(needed, frozenset()), self._installed, self._surroundings))
        names = {one.name for owners in known.values() for one in owners}
        names |= unseen(known, self._installed, self._surroundings, self._keras_backend())
        names |= named_beside([self._root, *(file.parent for file in starts.files)]) & self._installed.by_name.keys()
        names |= {one.name for program in starts.programs for one in self._of_command(program)}
        names |= self._asked_for()
        self.notes += () if starts.guessed else list(self._missing(lost))[:_MOST_NAMED]
        return closure(dict.fromkeys(names, frozenset()), self._installed, self._surroundings)

    def _imports(self, starts: Starts) -> list[Import]:
        """Also of the packages that are somebody's own: those seldom say all that they need. A folder at the top of the
        source is looked at last, since Python does not look there by itself."""
        named = self._job.env.get("PYTHONPATH", "").split(os.pathsep)
        places = [*starts.places, *(self._root / one for one in named if one)]
        found = {one.name: one for one in imports_in(starts.code, "the command", places)}
        found |= {name: Import(name, "the command", needed=True) for name in starts.modules}
        waiting, seen = [*starts.files, *(file for name in found for file in self._own_files(name))], set[Path]()
        while waiting:
            seen |= set(waiting)
            fresh = [one for one in imports_of(waiting, places, self._root) if one.name not in found]
            found |= {one.name: one for one in fresh}
            waiting = [file for one in fresh for file in self._own_files(one.name) if file not in seen]
        return list(found.values())

    def _own_files(self, module: str) -> list[Path]:
        owners = self._installed.owners(module)
        if owners:
            return [file for one in owners for file in one.project_files(module)]
        return module_files(module, self._root)

    def _of_command(self, program: str) -> list[Distribution]:
        if (self._root / program).exists():
            return []
        return self._installed.of_command(PurePosixPath(program).name)

    def _asked_for(self) -> set[str]:
        asked = self._job.environment.packages
        names = {normal(name) for name in asked} if isinstance(asked, tuple) else set[str]()
        known = self._installed.by_name
        problems = [
            Problem("environment.packages", f"`{name}`", f"a package of {self._settings.python}", nearest(name, known))
            for name in sorted(names - known.keys())
        ]
        if problems:
            raise JobInvalid(problems)
        return names

    def _keras_backend(self) -> str:
        name = "KERAS_BACKEND"
        return self._job.env.get(name) or self._settings.variable(name) or ""

    def _missing(self, lost: Iterable[Import]) -> Iterator[str]:
        for one in lost:
            if not one.needed or module_files(one.top, self._root):
                continue
            elsewhere = next((place for place in self._outside() if module_files(one.top, place)), None)
            if elsewhere:
                where = f"is in {elsewhere}, which is not sent: make it part of the source"
                yield f"`{one.top}`, which {one.by} imports, {where}"
            else:
                yield f"`{one.top}`, which {one.by} imports, is not installed in {self._settings.python}"

    def _outside(self) -> Iterator[Path]:
        given = (self._settings.variable("PYTHONPATH") or "").split(os.pathsep)
        yield from (Path(one) for one in given if one)

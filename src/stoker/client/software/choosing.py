"""Which packages of the submitting Python a run needs, by what its command starts and imports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from stoker.client.settings import Settings
from stoker.client.software.closure import closure, imported, named_beside, unseen
from stoker.client.software.imports import Import, imports_of, module_files
from stoker.client.software.installed import Distribution, Installed
from stoker.client.software.markers import normal
from stoker.client.tree import Tree
from stoker.errors import JobInvalid, Problem
from stoker.model.commandline import commands
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
        self._files = [
            self._root / entry.path for entry in tree.snapshot.entries if entry.path.endswith((".py", ".ipynb"))
        ]
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
        starts, modules = self._starts()
        places = self._places(starts)
        imports = self._imports(starts, modules, places)
        known, lost = imported(imports, self._installed)
        needed = {owner.name for one in imports if one.needed for owner in known.get(one.name, ())}
        self._needed = set(closure(dict.fromkeys(needed, frozenset()), self._installed, self._surroundings))
        names = {one.name for owners in known.values() for one in owners}
        names |= unseen(known, self._installed, self._surroundings, self._keras_backend())
        names |= named_beside([self._root, *(file.parent for file in starts)]) & self._installed.by_name.keys()
        names |= {one.name for command in commands(self._job.run) for one in self._of_command(command.program)}
        names |= self._asked_for()
        self._tell(lost)
        return closure(dict.fromkeys(names, frozenset()), self._installed, self._surroundings)

    def _starts(self) -> tuple[list[Path], list[str]]:
        """The files that the command runs, and modules of packages. Where none is known, as of a shell's script, every
        file of the source may be one."""
        starts: list[Path] = []
        modules: list[str] = []
        for command in commands(self._job.run):
            if command.module:
                own = module_files(command.module, self._root) + module_files(f"{command.module}.__main__", self._root)
                starts += own
                modules += [] if own else [command.module]
            elif command.script.endswith((".py", ".ipynb")) and (self._root / command.script).is_file():
                starts.append(self._root / command.script)
            else:
                words = (word for word in command.program if word.endswith((".py", ".ipynb")))
                starts += [self._root / word for word in words if (self._root / word).is_file()]
        return (list(dict.fromkeys(starts)) if starts or modules else self._files), modules

    def _places(self, starts: Iterable[Path]) -> list[Path]:
        given = self._job.env.get("PYTHONPATH", "").split(os.pathsep)
        named = [self._root / one for one in given if one]
        return list(dict.fromkeys([*(file.parent for file in starts), *named]))

    def _imports(self, starts: list[Path], modules: list[str], places: list[Path]) -> list[Import]:
        """Also of the packages that are somebody's own: those seldom say all that they need. A folder at the top of the
        source is looked at last, since Python does not look there by itself."""
        found: dict[str, Import] = {}
        waiting, seen = list(starts), set[Path]()
        while waiting:
            seen |= set(waiting)
            fresh = [one for one in imports_of(waiting, places, self._root) if one.name not in found]
            found |= {one.name: one for one in fresh}
            waiting = [file for one in fresh for file in self._own_files(one.name) if file not in seen]
        found |= {name: Import(name, "the command", needed=True) for name in modules}
        return list(found.values())

    def _own_files(self, module: str) -> list[Path]:
        owners = self._installed.owners(module)
        if owners:
            return [file for one in owners for file in one.project_files(module)]
        return module_files(module, self._root)

    def _of_command(self, program: tuple[str, ...]) -> list[Distribution]:
        name = PurePosixPath(program[0]).name if program else ""
        if not name or name.startswith(("python", "bash", "sh")) or (self._root / program[0]).exists():
            return []
        return self._installed.of_command(name)

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

    def _tell(self, lost: Iterable[Import]) -> None:
        for one in list(self._missing(lost))[:_MOST_NAMED]:
            self.notes.append(one)

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

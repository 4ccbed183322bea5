"""Which packages of the submitting Python a run needs: what it imports, and what those require."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from stoker.client.settings import ClientSettings
from stoker.client.software.installed import Distribution, Import, Installed, imports_in, imports_of, module_files
from stoker.client.software.packages import Requirement, normal
from stoker.client.source.tree import SourceTree
from stoker.errors import JobInvalid, Problem
from stoker.model.job.commandline import ShellCommand, commands
from stoker.model.job.fields import nearest
from stoker.model.job.job import Job

# Extras for developers of the package itself, or that only collect the others.
_DEVELOPER_GROUPS = re.compile(
    r"(dev|develop|test|tests|testing|doc|docs|lint|linting|typing|types|type|mypy|style|quality|build|building|release"
    r"|bench|benchmark|benchmarks|example|examples|maintenance|ci|all|full|complete|tutorial|tutorials|notebook|notebooks"
    r"|docker|coverage|profiling|packaging|publish)(-.*)?|.*-(dev|test|tests|testing|docs|all)"
)
_TOOLS = re.compile(
    r"(pytest|sphinx|jupyter|flake8|pylint|nbval|types)(-.*)?|ruff|black|isort|mypy|pyright|ipython|notebook|"
    r"pre-commit|coverage|tox|nox|twine|build|hypothesis"
)
# A script uses one of these, and a library that supports several names them all.
_FRAMEWORKS = ("torch", "tensorflow", "tensorflow-cpu", "jax", "flax", "keras", "mxnet", "paddlepaddle")
_KERAS = {"torch": ("torch",), "jax": ("jax",), "tensorflow": ("tensorflow", "tensorflow-cpu")}
# What a module loads by a name that its package does not declare.
_COMPANIONS = {
    "torch.utils.tensorboard": ("tensorboard",),
    "lightning": ("tensorboard",),
    "pytorch_lightning": ("tensorboard",),
    "evaluate": ("scikit-learn", "scipy"),
    "transformers": ("accelerate", "sentencepiece", "protobuf", "tiktoken"),
}
_OURS = "stoker"  # nodes already have it


def closure(
    names: Mapping[str, frozenset[str]], installed: Installed, surroundings: Mapping[str, str]
) -> dict[str, Distribution]:
    """These packages, by name with the extras in use, and all their requirements that are installed here."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, extras) for name, extras in names.items()]
    while waiting:
        name, extras = waiting.pop()
        one = installed.by_name.get(name)
        if one is None or name == _OURS or (name, extras) in done:
            continue
        done.add((name, extras))
        found[name] = one
        waiting += [(need.name, need.extras) for need in one.requires if need.holds(surroundings, extras)]
    return dict(sorted(found.items()))


def imported(imports: Iterable[Import], installed: Installed) -> tuple[dict[str, list[Distribution]], list[Import]]:
    """Module to the packages it belongs to, and the imports that no package provides."""
    found: dict[str, list[Distribution]] = {}
    lost: list[Import] = []
    for one in imports:
        if one.top == _OURS:
            continue
        if owners := installed.owners(one.name):
            found[one.name] = owners
        elif not any(one.top == other.top for other in lost):
            lost.append(one)
    return found, lost


def unseen(
    modules: Mapping[str, list[Distribution]],
    installed: Installed,
    surroundings: Mapping[str, str],
    keras_backend: str,
) -> set[str]:
    """Installed packages that are loaded without a visible import: optional parts of what the script imports, back ends
    and the like."""
    direct = {one.name: one for owners in modules.values() for one in owners}
    reached = set(closure(dict.fromkeys(direct, frozenset()), installed, surroundings))
    named = {
        need.name
        for one in direct.values()
        for need in one.requires
        if need.name in installed.by_name and not _TOOLS.fullmatch(need.name) and _is_optional(need, surroundings)
    }
    tops = {module.partition(".")[0] for module in modules}
    for module, others in _COMPANIONS.items():
        if module in tops or any(f"{one}.".startswith(f"{module}.") for one in modules):
            named |= {other for other in others if other in installed.by_name}
    kept = next((name for name in _FRAMEWORKS if name in named), "") if reached.isdisjoint(_FRAMEWORKS) else ""
    return named - (set(_FRAMEWORKS) - {kept}) | _keras(tops, installed, keras_backend)


def _is_optional(need: Requirement, surroundings: Mapping[str, str]) -> bool:
    groups = [group for group in need.groups if not _DEVELOPER_GROUPS.fullmatch(group)]
    return any(need.holds(surroundings, frozenset({group})) for group in groups)


def _keras(tops: set[str], installed: Installed, backend: str) -> set[str]:
    """Keras declares none of its back ends."""
    if "keras" not in tops:
        return set()
    wanted = [backend] if backend in _KERAS else ["tensorflow", "jax", "torch"]
    for one in wanted:
        if here := {name for name in _KERAS[one] if name in installed.by_name}:
            return here
    return set()


def named_beside(folders: Iterable[Path]) -> set[str]:
    """The requirements of a `requirements.txt` or `pyproject.toml` in these folders, by name."""
    found: set[str] = set()
    for folder in dict.fromkeys(folders):
        for file in (folder / "requirements.txt", folder / "pyproject.toml"):
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            found |= set(_listed(text) if file.suffix == ".txt" else _declared(text))
    return found


def _listed(text: str) -> Iterable[str]:
    for line in text.splitlines():
        match = re.match(r"\s*([A-Za-z0-9][\w.-]*)", line)
        if match and "://" not in line.partition(" @ ")[0]:
            yield normal(match[1])


def _declared(text: str) -> Iterable[str]:
    import tomllib  # not needed for a run on this computer

    try:
        told = tomllib.loads(text).get("project", {}).get("dependencies", [])
    except tomllib.TOMLDecodeError:
        return
    yield from (normal(match[0]) for one in told if (match := re.match(r"[A-Za-z0-9][\w.-]*", str(one))))


_MOST_NAMED = 8


class PackageChoice:
    """Which packages are included. `notes` are messages for the user."""

    def __init__(
        self,
        job: Job,
        tree: SourceTree,
        settings: ClientSettings,
        installed: Installed,
        surroundings: Mapping[str, str],
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
        """A package cannot be included: if the script cannot start without it, the run is refused."""
        if one.name not in self._needed:
            self.notes.append(f"{reason}; the run starts without it")
            return
        expected = "packages that can be included; a requirements file as `environment` may name others instead"
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
        """Also of the user's own packages: those seldom declare all requirements. A folder at the top of the source is
        searched last, since Python does not search there by default."""
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
                where = f"is in {elsewhere}, which is not uploaded: make it part of the source"
                yield f"`{one.top}`, which {one.by} imports, {where}"
            else:
                yield f"`{one.top}`, which {one.by} imports, is not installed in {self._settings.python}"

    def _outside(self) -> Iterator[Path]:
        given = (self._settings.variable("PYTHONPATH") or "").split(os.pathsep)
        yield from (Path(one) for one in given if one)


# What a job's command starts: files of its source, modules of packages, code on the command line.

_PYTHON = re.compile(r"i?python[\d.]*|pypy[\d.]*")
_SHELLS = ("sh", "bash", "zsh", "dash", "ksh")
# Programs that have nothing to do with Python.
_PLAIN = re.compile(
    r"\[|cat|cd|chmod|cp|date|df|du|echo|env|exit|export|false|free|head|hostname|id|kill|ls|mkdir|mv|nproc|nvidia-smi"
    r"|printenv|printf|ps|pwd|rm|sed|set|sleep|sync|tail|test|time|touch|trap|true|ulimit|uname|wait|wc|which|whoami"
)
_SCRIPT = (".py", ".ipynb")
_DEVELOPER_FILES = re.compile(r"(^|/)(tests?|docs?)/|(^|/)(setup|conftest|noxfile|test_[^/]*|[^/]*_test)\.py$")
_MOST_BYTES = 200_000


@dataclass(frozen=True, slots=True)
class Starts:
    files: tuple[Path, ...] = ()
    modules: tuple[str, ...] = ()  # that are not the source's own
    code: str = ""
    places: tuple[Path, ...] = ()  # where Python looks for modules first
    programs: tuple[str, ...] = ()  # of whatever kind
    guessed: bool = False  # unknown what it starts: the files are all candidates


def starts_of(job: Job, root: Path, paths: Iterable[str]) -> Starts:
    """`paths` are those of the source."""
    known = list(_commands(job.run, root))
    files: list[Path] = []
    modules: list[str] = []
    code: list[str] = []
    places: list[Path] = []
    for command in known:
        scripts = [root / word for word in command.program if word.endswith(_SCRIPT) and (root / word).is_file()]
        files += scripts
        places += [file.parent for file in scripts]
        if command.module:
            own = module_files(command.module, root) + module_files(f"{command.module}.__main__", root)
            files += own
            modules += [] if own else [command.module]
        if inline := _inline(command):
            code.append(inline)
        places += [root] if command.module or inline else []
    names = dict.fromkeys(command.program[0] for command in known if command.program)
    programs = tuple(name for name in names if not _PLAIN.fullmatch(PurePosixPath(name).name))
    if files or modules or code or not programs:
        unique = tuple(dict.fromkeys(files)), tuple(dict.fromkeys(modules))
        return Starts(*unique, "\n".join(code), tuple(dict.fromkeys(places)), programs)
    everything = tuple(root / path for path in paths if path.endswith(_SCRIPT) and not _DEVELOPER_FILES.search(path))
    return Starts(
        everything, places=tuple(dict.fromkeys(one.parent for one in everything)), programs=programs, guessed=True
    )


def _commands(line: str, root: Path, depth: int = 0) -> Iterator[ShellCommand]:
    """Those of the command, of shell scripts that it starts, and of what it passes to a shell."""
    for command in commands(line):
        yield command
        name = PurePosixPath(command.program[0]).name if command.program else ""
        if depth < 3 and name in _SHELLS and (told := _after(command.program, "-c")):
            yield from _commands(told, root, depth + 1)
        elif depth < 3 and command.script and not command.script.endswith(_SCRIPT):
            yield from _commands(_text(root / command.script), root, depth + 1)


def _inline(command: ShellCommand) -> str:
    name = PurePosixPath(command.program[0]).name if command.program else ""
    return _after(command.program, "-c") if _PYTHON.fullmatch(name) else ""


def _after(words: tuple[str, ...], option: str) -> str:
    """The argument after an option of letters, also of several in one word as in `-lc`."""
    for index, word in enumerate(words[1:-1], 1):
        if re.fullmatch(rf"-[a-zA-Z]*{option[1:]}", word):
            return words[index + 1]
    return ""


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MOST_BYTES).decode(errors="replace").replace("\\\n", " ")
    except OSError:
        return ""

"""Installed packages: which module belongs to which, and what a script and its modules import."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.client.software.packages import Requirement, folders_of, normal, parse
from stoker.model.job.commandline import NOTEBOOK

_MOST_BYTES = 1_000_000
_MOST_NOTEBOOK_BYTES = 20_000_000  # most of it are pictures
_MOST_FILES = 2000
_CATCHES = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_ASIDE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Import:
    """A module that is not the script's own, by its dotted name. `needed`: the script cannot start without it."""

    name: str
    by: str  # the file that imports it
    needed: bool

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class _Wish:
    names: tuple[str, ...]  # dotted; the first is imported for certain, the others may be names in it
    level: int = 0
    needed: bool = True


def imports_of(files: Iterable[Path], places: Sequence[Path], root: Path) -> list[Import]:
    """Everything that these files import from elsewhere, and the modules below `places` that they reach. Files are
    named relative to `root`. The standard library is omitted."""
    found: dict[str, Import] = {}
    seen: set[Path] = set()
    waiting = [file.absolute() for file in files]
    while waiting and len(seen) < _MOST_FILES:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        by = file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)
        for wish in _wishes(file):
            own = _own(wish, file, places)
            waiting += own
            if own or wish.level:
                continue
            for name in _names(wish):
                before = found.get(name)
                if before is None or (wish.needed and not before.needed):
                    found[name] = Import(name, by, wish.needed)
    return [one for one in found.values() if not _is_pythons(one.name)]


def imports_in(code: str, by: str, places: Sequence[Path]) -> list[Import]:
    """The same for code on a command line: imports from elsewhere, and from its own files."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    wishes = [wish for wish in _wishes_of(tree) if not wish.level]
    outside = [name for wish in wishes if not _own(wish, Path(), places) for name in _names(wish)]
    inside = [file for wish in wishes for file in _own(wish, Path(), places)]
    own = imports_of(inside, places, Path("/"))
    return [*(Import(name, by, needed=True) for name in outside if not _is_pythons(name)), *own]


def module_files(name: str, place: Path) -> list[Path]:
    """The files that importing a dotted name runs, if they are in this folder. A folder without `__init__.py` alone
    does not count: an installed package of that name takes precedence, as `datasets` does over a folder of data."""
    files, folder = list[Path](), place
    for part in name.split("."):
        if (folder / part / "__init__.py").is_file():
            files.append(folder / part / "__init__.py")
        elif (folder / f"{part}.py").is_file():
            return [*files, folder / f"{part}.py"]
        elif not part or not (folder / part).is_dir():
            break
        folder = folder / part
    return files


def _is_pythons(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names or name == "__main__"


def _names(wish: _Wish) -> tuple[str, ...]:
    return wish.names[1:] or wish.names


def _own(wish: _Wish, file: Path, places: Sequence[Path]) -> list[Path]:
    folders = [_upwards(file.parent, wish.level - 1)] if wish.level else places
    for folder in folders:
        if files := [one for name in wish.names for one in module_files(name, folder)]:
            return files
    return []


def _upwards(folder: Path, levels: int) -> Path:
    for _ in range(levels):
        folder = folder.parent
    return folder


def _wishes(file: Path) -> Iterator[_Wish]:
    try:
        tree = ast.parse(_source(file))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from _wishes_of(tree)


def _source(file: Path) -> bytes | str:
    is_notebook = file.suffix == NOTEBOOK
    with file.open("rb") as opened:
        data = opened.read(_MOST_NOTEBOOK_BYTES if is_notebook else _MOST_BYTES)
    if not is_notebook:
        return data
    from stoker.notebooks.document import code_of  # only notebooks need it

    return code_of(data)


def _wishes_of(tree: ast.AST) -> Iterator[_Wish]:
    stack: list[tuple[ast.AST, bool]] = [(tree, True)]
    while stack:
        node, needed = stack.pop()
        if isinstance(node, ast.Import):
            yield from (_Wish((alias.name,), needed=needed) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            inner = tuple(f"{base}.{alias.name}".strip(".") for alias in node.names if alias.name != "*")
            yield _Wish((base, *inner), node.level, needed)
        elif isinstance(node, ast.Call) and (named := _imported_by_name(node)):
            yield _Wish((named,), needed=False)
        stack += _below(node, needed)


def _below(node: ast.AST, needed: bool) -> Iterator[tuple[ast.AST, bool]]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        yield from ((one, needed) for one in node.orelse)
        return
    tried = isinstance(node, ast.Try) and any(map(_catches, node.handlers))
    aside = isinstance(node, _ASIDE)
    yield from ((one, needed and not tried and not aside) for one in ast.iter_child_nodes(node))


def _catches(handler: ast.ExceptHandler) -> bool:
    """What a script imports in a `try` is optional."""
    if handler.type is None:
        return True
    return any(isinstance(one, ast.Name) and one.id in _CATCHES for one in ast.walk(handler.type))


def _imported_by_name(node: ast.Call) -> str:
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    known = called in ("import_module", "__import__") and isinstance(first, str)
    return str(first) if known and re.fullmatch(r"[A-Za-z_][\w.]*", str(first)) else ""


_COMPILED = re.compile(rb"\.(so|pyd|dylib)(?:\.\d+)*,")
_INSIDE = ("", "src", "lib", "python")  # where a project's folder has its packages


@dataclass(frozen=True)
class Distribution:
    """One installed package. `folder` is that of its metadata, in `site`."""

    name: str  # normal
    version: str
    folder: Path
    site: Path

    @property
    def public(self) -> str:
        """Its version without a local part that only its index knows: `2.4.0+cpu` is `2.4.0` elsewhere."""
        return self.version.partition("+")[0]

    @cached_property
    def record(self) -> bytes:
        """The list of its files; empty if there is none."""
        for name in ("RECORD", "installed-files.txt", "SOURCES.txt"):
            with suppress(OSError):
                return (self.folder / name).read_bytes()
        return b""

    @cached_property
    def requires(self) -> list[Requirement]:
        from importlib.metadata import PathDistribution  # reads both kinds of metadata

        try:
            told = PathDistribution(self.folder).requires or []
        except (OSError, UnicodeDecodeError, ValueError):
            told = []
        return [one for text in told if (one := parse(text))]

    @cached_property
    def origin(self) -> dict[str, object]:
        """The content of `direct_url.json`; empty if it came from an index. Conda's packages name folders of their
        build machines, and need libraries of Conda's own: an index has packages that run without."""
        with suppress(OSError):
            if (self.folder / "INSTALLER").read_bytes().strip() == b"conda":
                return {}
        try:
            told = json.loads((self.folder / "direct_url.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    @property
    def project(self) -> Path | None:
        """The local folder that it is an editable install of."""
        info, url = self.origin.get("dir_info"), str(self.origin.get("url", ""))
        if not isinstance(info, dict) or not info.get("editable") or not url.startswith("file:"):
            return None
        return Path(unquote(urlsplit(url).path))

    @property
    def is_compiled(self) -> bool:
        return _COMPILED.search(self.record) is not None

    @property
    def size_bytes(self) -> int:
        sizes = (line.rpartition(b",")[2].strip() for line in self.record.splitlines())
        return sum(int(size) for size in sizes if size.isdigit())

    def holds(self, module: str) -> bool:
        """A dotted name is a module of this package, and not only in a folder that several packages share."""
        path = b"\n" + module.replace(".", "/").encode()
        if path + b"/" in self._lines or path + b".py," in self._lines:
            return True
        return (
            path + b"." in self._lines
            and re.search(re.escape(path) + rb"\.(?:[\w-]+\.)?(so|pyd),", self._lines) is not None
        )

    @cached_property
    def _lines(self) -> bytes:
        return b"\n" + self.record

    def commands(self) -> Iterator[str]:
        with suppress(OSError):
            text = (self.folder / "entry_points.txt").read_text(encoding="utf-8", errors="replace")
            section = re.search(r"\[console_scripts\](.*?)(?:\n\[|\Z)", text, re.S)
            yield from re.findall(r"^\s*([\w.-]+)\s*=", section[1] if section else "", re.M)

    def project_files(self, module: str) -> list[Path]:
        """Of an editable install: the files that importing the module runs."""
        if self.project is None:
            return []
        places = [*(self.project / one for one in _INSIDE), *self._named_places()]
        return next((found for place in places if (found := module_files(module, place))), [])

    def _named_places(self) -> Iterator[Path]:
        """Folders that the install itself names, one on each line of its `.pth` files."""
        for name in re.findall(rb"^([^/,\n]+\.pth),", self.record, re.M):
            with suppress(OSError):
                lines = (self.site / name.decode(errors="replace")).read_text(errors="replace").splitlines()
                yield from (Path(line.strip()) for line in lines if line.startswith("/"))


@dataclass(frozen=True)
class Installed:
    """All of an interpreter's."""

    by_name: dict[str, Distribution] = field(default_factory=dict)

    @classmethod
    def of(cls, python: str) -> Installed:
        found: dict[str, Distribution] = {}
        for site in folders_of(python):
            with suppress(OSError):
                for folder in sorted(site.iterdir()):
                    if folder.suffix in (".dist-info", ".egg-info"):
                        name, _, rest = folder.name.rpartition(".")[0].partition("-")
                        version = rest.partition("-py")[0]
                        found.setdefault(normal(name), Distribution(normal(name), version, folder, site))
        return cls(found)

    def owners(self, module: str) -> list[Distribution]:
        """The packages with this module. Several share names such as `google`: then those that contain the
        submodule."""
        top = module.partition(".")[0]
        namesake = self.by_name.get(normal(top))
        if namesake and namesake.holds(module):
            return [namesake]
        sharing = [one for one in self.by_name.values() if one.holds(top)]
        name = module
        while len(sharing) > 1 and "." in name:
            if inside := [one for one in sharing if one.holds(name)]:
                return inside
            name = name.rpartition(".")[0]
        return sharing or [one for one in self.by_name.values() if one.project_files(top)]

    def of_command(self, name: str) -> list[Distribution]:
        return [one for one in self.by_name.values() if name in one.commands()]

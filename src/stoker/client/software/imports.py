"""The imports of a script and its modules: parsed, never run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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

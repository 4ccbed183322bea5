"""The functions of a script and of its modules: what they are called with, and what they return.

Names are matched as written: with two methods of one name, either may be meant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MOST_MODULES = 20
_MOST_BYTES = 300_000  # of all modules: parsing that much takes a tenth of a second
_MOST_SITES = 4
_LIBRARIES = (
    "torch",
    "np",
    "numpy",
    "os",
    "keras",
    "tf",
    "jax",
    "jnp",
    "joblib",
    "pickle",
    "json",
    "shutil",
    "xgb",
    "lgb",
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class LocalCode:
    functions: dict[str, list[Function]] = field(default_factory=dict)  # a class stands for its `__init__`
    sites: dict[str, list[ast.Call]] = field(default_factory=dict)
    of_libraries: dict[str, list[ast.Call]] = field(default_factory=dict)  # calls of a few well-known ones
    owners: dict[ast.Name, tuple[str, Function]] = field(default_factory=dict)  # of names that are parameters
    _results: dict[Function, list[ast.expr]] = field(default_factory=dict)

    def called(self, name: str) -> list[ast.Call]:
        """All calls of a function of this name, wherever it is from."""
        return [*self.sites.get(name, ()), *self.of_libraries.get(name, ())]

    def given(self, node: ast.Name) -> Iterator[ast.expr]:
        """A parameter's possible values: at the first few calls of its function, and its default if one omits it."""
        called, function = self.owners[node]
        position, default = _position(function, node.id), _default(function, node.id)
        calls = self.sites.get(called, [])[:_MOST_SITES]
        lacking = not calls
        for call in calls:
            named = [one.value for one in call.keywords if one.arg == node.id]
            plain = not any(isinstance(one, ast.Starred) for one in call.args)
            if named or (plain and position is not None and position < len(call.args)):
                yield named[0] if named else call.args[position or 0]
            else:
                lacking = True
        if default and lacking:
            yield default

    def results(self, call: ast.Call) -> Iterator[ast.expr]:
        """What the called function may return."""
        for function in self.functions.get(name_of(call), ()) if is_local(call) else ():
            if function.name != "__init__":
                if function not in self._results:
                    self._results[function] = _returned(function)
                yield from self._results[function]

    def properties(self, name: str) -> Iterator[ast.expr]:
        """What a property of this name returns."""
        for function in self.functions.get(name, ()):
            if any("property" in ast.unparse(one) for one in function.decorator_list):
                yield from _returned(function)

    def passes_to(self, call: ast.Call) -> str:
        """The function that a wrapper passes all of its arguments to, as in `torch.save(*args)`; else empty."""
        for function in self.functions.get(name_of(call), ()) if is_local(call) else ():
            rest = function.args.vararg
            for inner in nodes(function) if rest else ():
                if isinstance(inner, ast.Call) and any(
                    isinstance(one, ast.Starred) and getattr(one.value, "id", "") == (rest.arg if rest else "")
                    for one in inner.args
                ):
                    return name_of(inner)
        return ""


def local_code(trees: Iterable[ast.AST]) -> LocalCode:
    code = LocalCode()
    for tree in trees:
        for node in nodes(tree):  # from the outside in: the innermost function decides about a name
            if isinstance(node, ast.Call):
                calls = code.sites if is_local(node) else code.of_libraries
                calls.setdefault(name_of(node), []).append(node)
            elif isinstance(node, ast.ClassDef):
                for one in node.body:
                    if isinstance(one, Function) and one.name == "__init__":
                        _note(code, node.name, one)
            elif isinstance(node, Function) and node.name != "__init__":
                _note(code, node.name, node)
    return code


def nodes(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a tree, collected once: they are searched many times."""
    known: list[ast.AST] | None = tree.__dict__.get("_nodes")
    if known is None:
        known = list(ast.walk(tree))
        tree.__dict__["_nodes"] = known
    return known


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_local(call: ast.Call) -> bool:
    """Not a function of a well-known library, which may share its name with a local one."""
    return not (isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in _LIBRARIES)


def modules(path: Path, root: Path, tree: ast.AST) -> dict[Path, ast.Module]:
    """Those that a script imports from its own folder, from the root, or from `src`, and those that they import."""
    found: dict[Path, ast.Module] = {}
    left = _MOST_BYTES
    todo = [(path, tree)]
    while todo and len(found) < _MOST_MODULES:
        place, code = todo.pop(0)
        for file in _imported(code, place, root):
            if file in found or file == path or len(found) >= _MOST_MODULES:
                continue
            parsed = _parsed(file, left)
            if parsed:
                left -= file.stat().st_size
                found[file] = parsed
                todo.append((file, parsed))
    return found


def _returned(function: Function) -> list[ast.expr]:
    return [one.value for one in nodes(function) if isinstance(one, ast.Return) and one.value]


def _note(code: LocalCode, called: str, function: Function) -> None:
    code.functions.setdefault(called, []).append(function)
    parameters = {one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    parameters -= {"self", "cls"}
    for node in nodes(function):
        if isinstance(node, ast.Name) and node.id in parameters:
            code.owners[node] = (called, function)


def _position(function: Function, name: str) -> int | None:
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    return names.index(name) if name in names else None


def _default(function: Function, name: str) -> ast.expr | None:
    named = [*function.args.posonlyargs, *function.args.args]
    plain = zip(reversed(named), reversed(function.args.defaults), strict=False)
    every = [*plain, *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]
    return next((default for argument, default in every if argument.arg == name), None)


def _imported(tree: ast.AST, path: Path, root: Path) -> Iterator[Path]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name.split("."), path, root)
        elif isinstance(node, ast.ImportFrom):
            begin = path.parent
            for _ in range(node.level - 1):
                begin = begin.parent
            parts = node.module.split(".") if node.module else []
            for alias in node.names:
                inside = begin.is_relative_to(root)
                yield from (
                    _files_in(begin, [*parts, alias.name])
                    if node.level and inside
                    else _files([*parts, alias.name], path, root)
                )


def _files(parts: list[str], path: Path, root: Path) -> Iterator[Path]:
    for place in dict.fromkeys([path.parent, root, root / "src"]):
        yield from _files_in(place, parts)


def _files_in(place: Path, parts: list[str]) -> Iterator[Path]:
    """The module itself, or the module that contains the last name."""
    for names in (parts, parts[:-1]):
        if names:
            file = place.joinpath(*names)
            for one in (file.with_name(f"{file.name}.py"), file / "__init__.py"):
                if one.is_file():
                    yield one


def _parsed(file: Path, most_bytes: int) -> ast.Module | None:
    try:
        if file.stat().st_size > most_bytes:
            return None
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None

"""Texts that a script would compute: constants, joined paths, f-strings and defaults, folded statically.

Values known only at run time, such as the number of an epoch, become `*`, so that a path becomes a glob.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from stoker.client.script.localcode import Function, LocalCode, local_code, name_of, nodes

UNKNOWN = "*"
_SPEC = re.compile(r"%[-+ #0]*[\d.]*[a-zA-Z]")
_FIELD = re.compile(r"\{(\w*)[^{}]*\}")  # of `format`
_MODE = re.compile(r"[rwax][bt+]{0,2}")  # of `open`
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_ANY = ast.Constant(None)
_DEEPEST = 20
_MOST_STEPS = 2_000  # per text: nested calls would take too long
_JOINING = ("join", "joinpath", "Path", "PurePath", "PosixPath")
_PASSING = (
    "str",
    "fspath",
    "expanduser",
    "abspath",
    "resolve",
    "absolute",
    "as_posix",
    "realpath",
    "normpath",
    "strip",
)


@dataclass(slots=True)
class Values:
    """The values of names: variables, parameters with a default, flags, and keys of a configuration.

    If a name has different texts in different places, the first known one counts.
    """

    names: dict[str, list[ast.expr]] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)  # flags and keys, by the name that a script uses for them
    forced: dict[str, str] = field(default_factory=dict)  # flags whose value the job file gives
    moved: str = ""  # the folder that a library changes to before the script begins
    code: LocalCode = field(default_factory=LocalCode)
    # Names that stand for one thing where they are: `f` of `with open(...) as f`, and `__file__` of each module.
    bound: dict[ast.Name, ast.expr] = field(default_factory=dict)
    near: dict[ast.Name, list[ast.expr]] = field(default_factory=dict)  # what its own function gives a name
    changing: set[str] = field(default_factory=set)  # names with other values in loops or from callers
    looped: set[str] = field(default_factory=set)  # variables of loops
    _choice: int = 0  # which of several calls gives a parameter's value
    _steps: int = 0
    _busy: set[str] = field(default_factory=set)  # names whose text is being found

    def texts(self, node: ast.expr | None) -> list[str]:
        """Every known value, if it depends on how a function is called."""
        found: dict[str, None] = {}
        for self._choice in range(4):
            if text := self.text(node):
                found[text] = None
        self._choice = 0
        return list(found)

    def text(self, node: ast.expr | None, depth: int = 0) -> str | None:
        """None if nothing of it is known."""
        self._steps = self._steps + 1 if depth else 0
        if node is None or depth > _DEEPEST or self._steps > _MOST_STEPS:
            return None
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return str(number)
            case ast.JoinedStr(values=parts):
                return self._joined(parts, depth)
            case ast.Name() if node in self.bound:
                return self.text(self.bound[node], depth + 1)
            case ast.Name(id=name):
                found = self._parameter(node, depth) or self._named(name, depth, self.near.get(node, []))
                own = self._is_looped(node) and name not in self.forced and found == self.known.get(name)
                return None if own else found  # it only has the name of an option
            case ast.Attribute(attr=name):
                return self._attribute(node, name, depth)
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                return self.forced.get(name) or self._named(f"[{name}]", depth) or self.known.get(name)
            case ast.Subscript(value=ast.Attribute(attr="argv"), slice=ast.Constant(value=int(number))):
                return self.forced.get(f"argv[{number}]")
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=0)) if name_of(call) == "splitext":
                return _stem(self.text(call.args[0], depth + 1)) if call.args else None
            case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(up))):
                return _above(self.text(inner, depth + 1), up + 1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._concatenated([left, right], "", depth)
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._concatenated([left, right], "/", depth)
            case ast.BinOp(left=left, op=ast.Mod(), right=right):
                return self._formatted(self.text(left, depth + 1), right, depth)
            case ast.BoolOp(values=[*options]):
                return next(filter(None, (self.text(one, depth + 1) for one in options)), None)
            case ast.IfExp(body=body, orelse=other):
                return self.text(body, depth + 1) or self.text(other, depth + 1)
            case ast.Call():
                return self._called(node, depth)
        return None

    def _parameter(self, node: ast.Name, depth: int) -> str | None:
        if node not in self.code.owners or node.id in self.forced:
            return None
        texts = [
            self.text(one, depth + 1) or (UNKNOWN if self._is_looped(one) else None) for one in self.code.given(node)
        ]
        found = [text for text in texts if text is not None]
        return found[min(self._choice, len(found) - 1)] if found else None

    def _is_looped(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.looped and node not in self.code.owners

    def _named(self, name: str, depth: int, near: list[ast.expr] | None = None) -> str | None:
        if name in self.forced:
            return self.forced[name]
        found = None
        if name in self.names and name not in self._busy:
            self._busy.add(name)  # `path = path / "more"` would never end
            texts = (self.text(one, depth + 1) for one in (*(near or ()), *self.names[name]))
            found = next((text for text in texts if text is not None), None)
            self._busy.remove(name)
            if found and _NUMBER.fullmatch(found) and (name in self.changing or len(self.names[name]) > 1):
                return None  # an epoch or a step, and this is only its first value
        return self.known.get(name) if found is None else found

    def _attribute(self, node: ast.Attribute, name: str, depth: int) -> str | None:
        """`args.save_dir`, `cfg.train.dir`, `self.path`, and `path.parent`."""
        if name == "parent":
            return _above(self.text(node.value, depth + 1), 1)
        if name == "pardir":
            return ".."
        if name in self.forced:
            return self.forced[name]
        if getattr(node.value, "id", "") == "self":  # a key of the configuration may have the same name
            for one in self.code.properties(name):
                if text := self.text(one, depth + 1):
                    return text
        dotted = ast.unparse(node).partition(".")[2] if depth < 3 else name
        found = self.known.get(dotted) or self.known.get(name)
        found = found or self._named(f"self.{name}", depth) or self._named(name, depth)
        found = found or self._named(f"[{name}]", depth)  # of a dictionary whose keys are attributes, too
        if found and _NUMBER.fullmatch(found) and f"self.{name}" in self.changing:
            return None
        computed = self.code.properties(name) if found is None else ()
        return next((text for one in computed if (text := self.text(one, depth + 1))), found)

    def _called(self, call: ast.Call, depth: int) -> str | None:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        inside = [call.func.value] if isinstance(call.func, ast.Attribute) else []
        if name in _JOINING:
            own = inside if name == "joinpath" else []
            return self._concatenated([*own, *call.args], "/", depth) if own or call.args else "."
        if name in _PASSING:
            return next((text for one in (*call.args, *inside) if (text := self.text(one, depth + 1))), None)
        if name == "format":
            return self._filled_in(self.text(inside[0], depth + 1) if inside else None, call, depth)
        if name == "basename" and call.args:
            return PurePosixPath(self.text(call.args[0], depth + 1) or "").name or None
        if name == "dirname" and call.args:
            return _above(self.text(call.args[0], depth + 1), 1)
        if name in ("with_suffix", "with_name") and inside and call.args:
            return _renamed(self.text(inside[0], depth + 1), name, self.text(call.args[0], depth + 1))
        if name in ("cwd", "getcwd") and not call.args:
            return "."
        if name in ("open", "File"):  # of a path, or of a library that is given one
            found = next((text for one in (*inside, *call.args[:1]) if (text := self.text(one, depth + 1))), None)
            return None if found and _MODE.fullmatch(found) else found
        if name in ("get", "getenv", "pop") and call.args:
            told = self.forced.get(str(getattr(call.args[0], "value", "")))
            return told or (self.text(call.args[1], depth + 1) if len(call.args) > 1 else None)
        return next((text for one in self.code.results(call) if (text := self.text(one, depth + 1))), None)

    def _formatted(self, text: str | None, given: ast.expr, depth: int) -> str | None:
        """`"%s/net_%d.pt" % (folder, epoch)`"""
        parts = iter(given.elts if isinstance(given, ast.Tuple) else [given])
        return _SPEC.sub(lambda _: self.text(next(parts, None), depth + 1) or UNKNOWN, text) if text else None

    def _filled_in(self, text: str | None, call: ast.Call, depth: int) -> str | None:
        """`"{}/net_{:03d}.pt".format(folder, epoch)`"""
        given: dict[str, ast.expr] = {str(number): one for number, one in enumerate(call.args)}
        given |= {one.arg: one.value for one in call.keywords if one.arg}
        numbers = map(str, range(len(call.args)))
        return (
            _FIELD.sub(lambda one: self.text(given.get(one[1] or next(numbers, "")), depth + 1) or UNKNOWN, text)
            if text
            else None
        )

    def _joined(self, parts: Iterable[ast.expr], depth: int) -> str:
        texts = []
        for part in parts:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            text = self.text(inner, depth + 1)
            texts.append(UNKNOWN if text is None else text)
        return "".join(texts)

    def _concatenated(self, parts: Iterable[ast.expr], between: str, depth: int) -> str | None:
        """None if its beginning is unknown: it may be anywhere then."""
        texts = [self.text(part, depth + 1) for part in parts]
        if not texts or texts[0] is None:
            return None
        shown = [UNKNOWN if text is None else text for text in texts]
        if between == "/" and ".." in shown[1:]:  # of a file, as of a folder: `join(__file__, pardir, pardir)`
            return posixpath.normpath("/".join(shown))
        if between == "/":
            return str(PurePosixPath(*shown)) + ("/" if shown[-1].endswith("/") or shown[-1] == "" else "")
        return between.join(shown)


def gather(*trees: ast.AST) -> Values:
    """The variables of a script and of its modules, and the parameters of their functions."""
    values = Values(code=local_code(trees))
    for tree in trees:
        for node in nodes(tree):
            values.changing |= set(_changed(node))
            values.looped |= (
                {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
                if isinstance(node, ast.For | ast.comprehension)
                else set()
            )
            for name, value in _bindings(node):
                if not (isinstance(value, ast.Constant) and value.value in (None, "")):
                    values.names.setdefault(name, []).append(value)
            if isinstance(node, ast.With):
                values.bound |= _opened(node)
            elif isinstance(node, Function):
                values.near |= _near(node)
    return values


def place_file(values: Values, tree: ast.AST, path: str) -> None:
    """`path` is the value of `__file__` in this tree, relative to the working directory."""
    for node in nodes(tree):
        if isinstance(node, ast.Name) and node.id == "__file__":
            values.bound[node] = ast.Constant(path)


def _near(function: Function) -> dict[ast.Name, list[ast.expr]]:
    """The names in it that it gives a value itself: other functions may mean something else by them."""
    given: dict[str, list[ast.expr]] = {}
    for node in nodes(function):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for name, value in _bindings(node):
                given.setdefault(name, []).append(value)
    return {one: given[one.id] for one in nodes(function) if isinstance(one, ast.Name) and one.id in given}


def _opened(node: ast.With) -> dict[ast.Name, ast.expr]:
    """Other functions open other files with the same name, so only the body of the statement counts."""
    named = {one.optional_vars.id: one.context_expr for one in node.items if isinstance(one.optional_vars, ast.Name)}
    inside = (one for statement in node.body for one in ast.walk(statement))
    return {one: named[one.id] for one in inside if isinstance(one, ast.Name) and one.id in named}


def _above(text: str | None, levels: int) -> str | None:
    """From the working directory, which `.parent` may lead out of: `../data`."""
    if not text:
        return None
    path = PurePosixPath(text)
    for _ in range(levels):
        path = path / ".." if path.name in ("", "..") and not path.is_absolute() else path.parent
    return str(path)


def _stem(text: str | None) -> str | None:
    return text and posixpath.splitext(text)[0]


def _renamed(text: str | None, how: str, name: str | None) -> str | None:
    try:
        path = PurePosixPath(text or "")
        return str(path.with_suffix(name or "") if how == "with_suffix" else path.with_name(name or UNKNOWN))
    except ValueError:
        return None


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _target(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _target(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _target(target, value)
        case ast.With(items=items):
            for opened in items:
                if opened.optional_vars is not None:
                    yield from _target(opened.optional_vars, opened.context_expr)
        case ast.FunctionDef(args=given) | ast.AsyncFunctionDef(args=given):
            named = [*given.posonlyargs, *given.args]
            for argument, default in zip(reversed(named), reversed(given.defaults), strict=False):
                yield argument.arg, default
            for argument, kept in zip(given.kwonlyargs, given.kw_defaults, strict=True):
                if kept is not None:
                    yield argument.arg, kept
        case ast.Dict(keys=keys, values=items):
            for key, item in zip(keys, items, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield f"[{key.value}]", item


def _changed(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.comprehension(target=target):
            for one in ast.walk(target):
                yield from (name for name, _ in _target(one, _ANY)) if isinstance(one, ast.expr) else ()
        case ast.FunctionDef(args=given) | ast.AsyncFunctionDef(args=given):
            yield from (one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def _target(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from _target(one, other)
    elif isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Attribute):
        yield f"self.{target.attr}", value
    elif isinstance(target, ast.Subscript) and isinstance(key := getattr(target.slice, "value", None), str):
        yield f"[{key}]", value

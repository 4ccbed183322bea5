"""The options of a script, declared with argparse, click, absl, typer or fire."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.client.script.folding import Values
from stoker.client.script.localcode import nodes

_SHORT = re.compile(r"-[A-Za-z]\w*")


@dataclass(frozen=True, slots=True)
class ScriptFlag:
    """A command-line option of the script."""

    name: str  # with its dashes
    default: str | None = None
    required: bool = False
    switch: bool = False  # it takes no value
    optional: bool = False  # it takes a value or none
    positional: bool = False
    into: str = ""  # the variable it sets, if that has another name
    number: bool = False  # it takes a number
    choices: tuple[str, ...] = ()  # all values that it takes, if they are texts

    @property
    def dest(self) -> str:
        return self.into or self.name.lstrip("-").replace("-", "_")

    @property
    def bare(self) -> str:
        """The name that tells its purpose: a single letter does not."""
        return self.name.lstrip("-") if self.name.startswith("--") or self.positional else self.dest


def declared(call: ast.Call, values: Values) -> Iterator[ScriptFlag]:
    """By a call of argparse, click or absl."""
    names = [text for text in texts(call.args) if text.startswith("--")]
    names = names or [text for text in texts(call.args) if _SHORT.fullmatch(text)]
    plain = [text for text in texts(call.args[:1]) if not text.startswith("-")]
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    kind = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    default = given.get("default")
    if kind.startswith("DEFINE_") and plain:
        names = [f"--{plain[0]}"]
        default = call.args[1] if len(call.args) > 1 else default
    if names:
        yield ScriptFlag(
            names[0].partition("/")[0],
            _text(default, values),
            _says_true(given.get("required")),
            _is_switch(kind, given, default),
            optional="?" in _words(given, "nargs"),
            into=_words(given, "dest") or _parameter(call, kind),
            number=getattr(given.get("type"), "id", "") in ("int", "float"),
            choices=tuple(_choices(given.get("choices", given.get("type")))),
        )
    elif plain and kind in ("add_argument", "argument"):
        needed = not {"nargs", "default"} & given.keys()
        yield ScriptFlag(plain[0], _text(default, values), needed, positional=True)


def of_functions(tree: ast.Module, imports: set[str], chosen: ast.FunctionDef | None = None) -> list[ScriptFlag]:
    """Parameters of a function that typer or fire turns into a command; with several commands, of the chosen one."""
    if not {"typer", "fire"} & imports:
        return []
    named = {
        getattr(node.args[0], "id", "")
        for node in nodes(tree)
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in ("typer.run", "fire.Fire", "Fire")
    }
    found: list[ScriptFlag] = []
    for node in nodes(tree):
        if not isinstance(node, ast.FunctionDef) or (chosen is not None and node is not chosen):
            continue
        if node.name in named or any("command" in ast.unparse(one) for one in node.decorator_list):
            found += _parameters(node, dashes="typer" in imports)
    return found


def of_dataclasses(tree: ast.Module, imports: set[str]) -> list[ScriptFlag]:
    """Fields of the dataclasses that a library turns into options."""
    if not imports & {"tyro", "simple_parsing", "transformers.HfArgumentParser", "jsonargparse", "draccus"}:
        return []
    return [
        ScriptFlag(f"--{one.target.id}", _plain_default(one.value), one.value is None, _is_boolean(one.value))
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]


def texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _parameter(call: ast.Call, kind: str) -> str:
    """click's form of naming: `option("-o", "output")`."""
    return next((text for text in texts(call.args) if kind == "option" and text.isidentifier()), "")


def _choices(node: ast.expr | None) -> list[str]:
    """Of argparse's list, or of `click.Choice`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Choice") and node.args:
        node = node.args[0]
    return texts(node.elts) if isinstance(node, ast.List | ast.Tuple | ast.Set) else []


def _text(default: ast.expr | None, values: Values) -> str | None:
    if isinstance(default, ast.Constant):
        return None if default.value is None else str(default.value)
    return values.text(default)


def _is_boolean(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _plain_default(node: ast.expr | None) -> str | None:
    """Also of `field(default=...)`."""
    if isinstance(node, ast.Call):
        node = next((one.value for one in node.keywords if one.arg == "default"), None)
    return str(node.value) if isinstance(node, ast.Constant) and node.value is not None else None


def _words(given: dict[str | None, ast.expr], name: str) -> str:
    return "".join(texts([given[name]] if name in given else []))


def _says_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_switch(kind: str, given: dict[str | None, ast.expr], default: ast.expr | None) -> bool:
    boolean = _is_boolean(default)
    named = "action" in given and "BooleanOptionalAction" in ast.unparse(given["action"])
    switch = named or "store_" in _words(given, "action") or "is_flag" in given
    return switch or (boolean and kind in ("option", "DEFINE_bool", "DEFINE_boolean"))


def _parameters(function: ast.FunctionDef, *, dashes: bool) -> Iterator[ScriptFlag]:
    defaults = dict(zip(reversed(function.args.args), reversed(function.args.defaults), strict=False))
    for argument in function.args.args:
        default = defaults.get(argument)
        if isinstance(default, ast.Call) and default.args:
            default = default.args[0]  # `typer.Option(False, ...)`
        boolean = isinstance(default, ast.Constant) and isinstance(default.value, bool)
        text = str(default.value) if isinstance(default, ast.Constant) and default.value not in (None, ...) else None
        name = argument.arg.replace("_", "-") if dashes else argument.arg
        yield ScriptFlag(f"--{name}", text, argument not in defaults, boolean, into=argument.arg)

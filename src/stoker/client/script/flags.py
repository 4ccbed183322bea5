"""What a script can be told on its command line: its options and its subcommands."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stoker.client.script.folding import Values
from stoker.client.script.localcode import name_of, nodes

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
    short: str = ""  # its other name, as `-m`

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
    short = [text for text in texts(call.args) if _SHORT.fullmatch(text)]
    names = names or short
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
            short=short[0] if short else "",
        )
    elif plain and kind in ("add_argument", "argument"):
        needed = not {"nargs", "default"} & given.keys()
        choices = tuple(_choices(given.get("choices", given.get("type"))))
        yield ScriptFlag(plain[0], _text(default, values), needed, positional=True, choices=choices)


def told_to_train(flag: ScriptFlag) -> str:
    """The argument without which the script would do something else than train, or nothing: `--do_train`,
    `--mode train`. Empty if the script needs none."""
    if flag.switch:
        return flag.name if _SAYS_TRAIN.fullmatch(flag.bare.lower()) and flag.default != "True" else ""
    if not _SAYS_WHAT.fullmatch(flag.bare.lower()) or "train" in (flag.default or ""):
        return ""
    named = [one for one in flag.choices if _TRAINS.fullmatch(one)]
    word = next((one for one in named if one in _PLAINLY), named[0] if named else "")
    return word if flag.positional or not word else f"{flag.name} {word}"


def marked(node: ast.AST) -> list[str]:
    """The options that are required although their declaration does not say so: absl's, and argparse's that an
    assertion wants."""
    if isinstance(node, ast.Assert):
        test = node.test
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot):
            test = test.left
        return [test.attr] if isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name) else []
    if not isinstance(node, ast.Call) or not name_of(node).startswith("mark_flag") or not node.args:
        return []
    first = node.args[0]
    return texts(first.elts if isinstance(first, ast.List | ast.Tuple) else [first])


def of_functions(tree: ast.Module, imports: set[str], chosen: ast.FunctionDef | None = None) -> list[ScriptFlag]:
    """Parameters of a function that typer or fire turns into a command; with several commands, of the chosen one."""
    if not {"typer", "fire", "jsonargparse", "tyro"} & imports:
        return []
    named = {getattr(one.args[0], "id", "") for one in _starters(tree) if one.args}
    found: list[ScriptFlag] = []
    for node in nodes(tree):
        if not isinstance(node, ast.FunctionDef) or (chosen is not None and node is not chosen):
            continue
        if node is chosen or node.name in named or any("command" in ast.unparse(one) for one in node.decorator_list):
            found += _parameters(node, dashes="typer" in imports)
    return found


def of_dataclasses(tree: ast.Module, imports: set[str]) -> list[ScriptFlag]:
    """Fields of the dataclasses that a library turns into options."""
    if not imports & {"tyro", "simple_parsing", "transformers.HfArgumentParser", "jsonargparse", "draccus"}:
        return []
    return [
        ScriptFlag(f"--{one.target.id}", _plain_default(one.value), _has_no_default(one.value), _is_boolean(one.value))
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]


def of_docstring(tree: ast.Module) -> list[ScriptFlag]:
    """Of docopt, whose options are the lines of a text: `--load=<file>  resume from it [default: a.pt]`."""
    found = []
    for line in (ast.get_docstring(tree) or "").splitlines():
        if option := _OF_DOCOPT.match(line):
            default = re.search(r"\[default: ([^\]]*)\]", line)
            text = default[1] if default else None
            found.append(ScriptFlag(option[1], text, switch=not option[2], into=option[1]))
    return found


_OF_DOCOPT = re.compile(r"\s+(?:-\w[ ,]+(?:<?\w+>?[ ,]+)?)?(--[\w-]+)([= ](?:<[\w-]+>|[A-Z][A-Z_-]*))?(?:\s{2,}|\s*$)")


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


def _has_no_default(node: ast.expr | None) -> bool:
    """Also of `field(metadata=...)`."""
    given = (
        [one.arg for one in node.keywords] if isinstance(node, ast.Call) and name_of(node) == "field" else ["default"]
    )
    return node is None or not {"default", "default_factory", "init"} & set(given)


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
    for argument in (one for one in function.args.args if one.arg != "self"):
        default = defaults.get(argument)
        if isinstance(default, ast.Call) and default.args:
            default = default.args[0]  # `typer.Option(False, ...)`
        boolean = isinstance(default, ast.Constant) and isinstance(default.value, bool)
        text = str(default.value) if isinstance(default, ast.Constant) and default.value not in (None, ...) else None
        name = argument.arg.replace("_", "-") if dashes else argument.arg
        yield ScriptFlag(f"--{name}", text, argument not in defaults, boolean, into=argument.arg)


_TRAINS = re.compile(r"(?i)(.*[_-])?(train|fit|pretrain|finetune|fine[_-]tune|learn)([_-].*)?")
_PLAINLY = ("train", "fit")
_LIKELY = ("main", "run", "start")
_SAYS_TRAIN = re.compile(r"((do|run|is)[_-]?)?(train|training|fit)")
_SAYS_WHAT = re.compile(r"((run|exec|script)[_-]?)?(mode|phase|action|task|stage|command|cmd|job|todo|do|operation)")
_WORK = ("fit", "partial_fit", "backward", "train", "save", "dump", "savez", "save_model", "optimize", "zero_grad")


class Parser(NamedTuple):
    """Of one of argparse's commands, in a variable that may hold another later, in lines `first` to `last`."""

    command: str
    variable: str
    line: int
    first: int
    last: int


class Subcommand(NamedTuple):
    """`function` is what click and typer call; `parsers` are argparse's, of all commands."""

    name: str
    function: ast.FunctionDef | None = None
    parsers: tuple[Parser, ...] = ()

    def has(self, call: ast.Call, owner: dict[ast.Call, ast.FunctionDef]) -> bool:
        """Whether this option belongs to this command, or to all commands."""
        if call in owner and self.function is not None:
            return owner[call] is self.function or not _is_command(owner[call])
        variable, line = getattr(getattr(call.func, "value", None), "id", None), call.lineno
        before = [one for one in self.parsers if one.variable == variable and one.first <= one.line <= line <= one.last]
        return not before or max(before, key=lambda one: one.line).command == self.name


def decorated(tree: ast.Module) -> dict[ast.Call, ast.FunctionDef]:
    """The functions that calls in decorators belong to."""
    functions = (node for node in nodes(tree) if isinstance(node, ast.FunctionDef))
    return {one: node for node in functions for one in node.decorator_list if isinstance(one, ast.Call)}


def subcommand(tree: ast.Module, imports: set[str]) -> Subcommand | None:
    """None if there is only one command, or it is unclear which of them trains."""
    if {"click", "typer"} & imports:
        commands = [node for node in nodes(tree) if isinstance(node, ast.FunctionDef) and _is_command(node)]
        if len(commands) > 1 or any(_is_group(node) for node in nodes(tree)):
            found = {_command_name(one): one for one in commands}
            name = _chosen({name: _works(one) for name, one in found.items()})
            return Subcommand(name, found[name]) if name else None
        return None
    if {"fire", "jsonargparse"} & imports and (found := _of_objects(tree)):
        name = _chosen({name: _works(one) for name, one in found.items()})
        return Subcommand(name, found[name]) if name else None
    parsers = tuple(_parsers(tree))
    name = _chosen({one.command: False for one in parsers})
    return Subcommand(name, parsers=parsers) if name else None


_STARTERS = re.compile(r"(\w+\.)?(Fire|CLI|auto_cli)|typer\.run|tyro\.cli")


def _starters(tree: ast.Module) -> list[ast.Call]:
    """The calls that turn functions or classes into commands."""
    return [node for node in nodes(tree) if isinstance(node, ast.Call) and _STARTERS.fullmatch(ast.unparse(node.func))]


def _of_objects(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The commands that Fire and jsonargparse make of a class, a dictionary or the whole module."""
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    for call in _starters(tree):
        what = call.args[0] if call.args else None
        if what is None:
            return functions
        if isinstance(what, ast.Dict):
            names = [getattr(key, "value", "") for key in what.keys]
            given = zip(names, (getattr(one, "id", "") for one in what.values), strict=True)
            return {str(name): functions[one] for name, one in given if one in functions}
        for one in tree.body:
            if isinstance(one, ast.ClassDef) and one.name == getattr(what, "id", ""):
                inside = [each for each in one.body if isinstance(each, ast.FunctionDef)]
                dataclass = any("dataclass" in ast.unparse(mark) for mark in one.decorator_list)
                return {} if dataclass else {each.name: each for each in inside if not each.name.startswith("_")}
    return {}


def _chosen(works: dict[str, bool]) -> str:
    """By its name, else by what it does."""
    named = [name for name in works if _TRAINS.fullmatch(name)]
    exact = [name for name in named if name in _PLAINLY]
    likely = [name for name in works if name in _LIKELY]
    does = [name for name, done in works.items() if done]
    first = next((names for names in (exact, named, does if len(does) == 1 else [], likely) if names), [])
    return first[0] if first else next(iter(works)) if len(works) == 1 else ""


def _is_command(function: ast.FunctionDef) -> bool:
    return any(_attribute(one) == "command" for one in function.decorator_list)


def _is_group(node: ast.AST) -> bool:
    """click's, or typer's `callback`, which requires even a single command to be named."""
    if not isinstance(node, ast.FunctionDef):
        return False
    return any(_attribute(one) in ("group", "callback") for one in node.decorator_list)


def _attribute(decorator: ast.expr) -> str:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return called.attr if isinstance(called, ast.Attribute) else ""


def _command_name(function: ast.FunctionDef) -> str:
    for one in function.decorator_list:
        if isinstance(one, ast.Call) and _attribute(one) == "command":
            given = [*one.args, *(keyword.value for keyword in one.keywords if keyword.arg == "name")]
            for word in given[:1]:
                if isinstance(word, ast.Constant) and isinstance(word.value, str):
                    return word.value
    return function.name.lower().replace("_", "-")


def _works(function: ast.FunctionDef) -> bool:
    return any(isinstance(one, ast.Call) and name_of(one) in _WORK for one in nodes(function))


def _parsers(tree: ast.Module) -> Iterator[Parser]:
    """Those of argparse's subcommands. A variable means what the function that it is in has put there last."""
    variables, functions = dict[ast.AST, str](), list[tuple[int, int]]()
    for node in nodes(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            variables[node.value] = getattr(node.targets[0], "id", "")
        elif isinstance(node, ast.FunctionDef):
            functions.append((node.lineno, node.end_lineno or node.lineno))
    for node in nodes(tree):
        if isinstance(node, ast.Call) and name_of(node) == "add_parser":
            around = [one for one in functions if one[0] <= node.lineno <= one[1]]
            for word in texts(node.args[:1]):
                yield Parser(word, variables.get(node, ""), node.lineno, *max(around, default=(0, sys.maxsize)))

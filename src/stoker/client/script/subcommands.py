"""The subcommand that makes a script train, if click, typer or argparse give it several."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from stoker.client.script.localcode import name_of, nodes

_TRAINS = re.compile(r"(?i)(.*[_-])?(train|fit|pretrain|finetune|fine[_-]tune|learn)([_-].*)?")
_LIKELY = ("main", "run", "start")
_WORK = ("fit", "partial_fit", "backward", "train", "save", "dump", "savez", "save_model", "optimize", "zero_grad")


class Subcommand(NamedTuple):
    """`function` is what click and typer call; `parsers` are the variables of argparse's parsers of other commands."""

    name: str
    function: ast.FunctionDef | None = None
    parsers: frozenset[str] = frozenset()

    def has(self, call: ast.Call, owner: dict[ast.Call, ast.FunctionDef]) -> bool:
        """Whether this option belongs to this command, or to all commands."""
        if call in owner and self.function is not None:
            return owner[call] is self.function or not _is_command(owner[call])
        return getattr(getattr(call.func, "value", None), "id", "") not in self.parsers


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
    parsers = dict(_parsers(tree))
    name = _chosen(dict.fromkeys(parsers, False))
    return Subcommand(name, parsers=frozenset(v for n, v in parsers.items() if v and n != name)) if name else None


def _chosen(works: dict[str, bool]) -> str:
    """By its name, else by what it does."""
    named = [name for name in works if _TRAINS.fullmatch(name)]
    exact = [name for name in named if name in ("train", "fit")]
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


def _parsers(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names of argparse's subcommands, each with the variable that its parser is kept in."""
    variables = {
        node.value: getattr(node.targets[0], "id", "")
        for node in nodes(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    }
    for node in nodes(tree):
        if isinstance(node, ast.Call) and name_of(node) == "add_parser" and node.args:
            word = node.args[0]
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                yield word.value, variables.get(node, "")

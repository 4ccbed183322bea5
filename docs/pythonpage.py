"""The page of the Python SDK, from signatures and docstrings. `generate.py` writes it."""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import stoker
import stoker.checkpoint
from stoker.model.run.run import Run

HEAD = """# The Python SDK

All public names of the packages `stoker` and `stoker.checkpoint`, with signatures. For examples, see
[Use Stoker from Python](../guides/python-sdk.md) and, for training scripts,
[Make your script survive eviction](../guides/survive-eviction.md). Names that begin with `_` and other modules may
change at any time. Errors are in [errors](errors.md).
"""
_CALLBACKS = ("keras", "lightning", "huggingface")
_LIKE_THE_FILE = {"Job", "DataInput", "Environment", "Spot"}  # their fields are on the page of the job file
_SOURCE = Path(stoker.__file__).parent


def page(note: str) -> str:
    parts = [f"{note}\n{HEAD}", "\n## stoker\n"]
    parts += [_shown(getattr(stoker, name), f"stoker.{name}") for name in stoker.__all__]
    parts += ["\n## stoker.checkpoint\n"]
    parts += [
        _shown(getattr(stoker.checkpoint, name), f"stoker.checkpoint.{name}") for name in stoker.checkpoint.__all__
    ]
    parts += [_callback(name) for name in _CALLBACKS]
    parts += ["\n## What calls return\n\nCreated by Stoker only. Records are frozen dataclasses.\n"]
    parts += [_shown(one, "The facts of a run" if one is Run else one.__name__) for one in returned()]
    return "".join(parts)


def public_classes() -> list[type[Any]]:
    named = [*(getattr(stoker, name) for name in stoker.__all__), stoker.checkpoint.Checkpoint]
    return [one for one in named if isinstance(one, type)]


def public_members(of: type[Any]) -> Iterator[tuple[str, Any]]:
    """Methods and properties that it has itself, in the order of its file."""
    for name, member in vars(of).items():
        if not name.startswith("_") and (callable(member) or isinstance(member, _PROPERTIES)):
            yield name, member


_PROPERTIES = (property, classmethod, staticmethod, cached_property)


def returned() -> list[type[Any]]:
    """Classes of Stoker that public functions and methods return, and that are not public by a name of their own; what
    those return in turn is included."""
    known, waiting = public_classes(), [*public_classes(), *_functions()]
    found: list[type[Any]] = []
    while waiting:
        for one in _results(waiting.pop(0)):
            if one not in known and one not in found:
                found.append(one)
                waiting.append(one)
    return sorted(found, key=lambda one: one.__name__)


def _functions() -> list[Any]:
    return [one for name in stoker.__all__ if not isinstance(one := getattr(stoker, name), type)]


def _results(of: Any) -> Iterator[type[Any]]:
    members = [member for _, member in public_members(of)] if isinstance(of, type) else [of]
    for member in members:
        function = _function(member)
        answer = str(getattr(function, "__annotations__", {}).get("return", ""))
        origins = _origins(function.__module__)
        for name in re.findall(r"(?:\bmodel\.)?\b[A-Z]\w*", answer):
            place = "stoker.model.run.run" if name.startswith("model.") else origins.get(name, "")
            one = getattr(import_module(place), name.removeprefix("model."), None) if place else None
            if isinstance(one, type) and one.__module__.startswith("stoker.") and not issubclass(one, BaseException):
                yield one


def _origins(module: str) -> dict[str, str]:
    """Where the classes come from that a module names, also those that it imports only for types or in a function."""
    tree = ast.parse(Path(inspect.getsourcefile(import_module(module)) or "").read_text(encoding="utf-8"))
    found = {node.name: module for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker."):
            found |= {alias.asname or alias.name: str(node.module) for alias in node.names}
    return found


def _function(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    return member.__func__ if isinstance(member, classmethod | staticmethod) else member


def _shown(one: Any, name: str) -> str:
    title = f"\n### {name}\n\n"
    if not isinstance(one, type):
        return f"{title}{_signature(one, name)}\n\n{_prose(one)}\n"
    if issubclass(one, enum.Enum):
        return f"{title}One of {', '.join(f'`{word.value}`' for word in one)}.\n"
    members = "".join(_member(label, member) for label, member in public_members(one))
    return f"{title}{_class(one, name)}" + (f"\n{members}" if members else "")


def _class(one: type[Any], name: str) -> str:
    text = _prose(one)
    if name.rpartition(".")[2] in _LIKE_THE_FILE:
        return f"{text}\n\nIts fields are those of [the job file](job-file.md).\n"
    named = [field.name for field in fields(one)] if is_dataclass(one) else getattr(one, "_fields", ())
    if named:
        listed = ", ".join(f"`{field}`" for field in named if not field.startswith("_"))
        own = "" if text.startswith(f"{one.__name__}(") else f"{text}\n\n"  # that is what dataclasses say by themselves
        return f"{own}Fields: {listed}.\n"
    if issubclass(one, BaseException):
        return f"{text}\n"
    return f"{_signature(one, name)}\n\n{text}\n" if name.startswith("stoker.checkpoint") else f"{text}\n"


def _member(label: str, member: Any) -> str:
    function = _function(member)
    if isinstance(member, property | cached_property):
        kind = str(function.__annotations__.get("return", ""))
        return f"- **`{label}`**: `{kind}`. {_line(function)}\n".replace(". \n", "\n")
    return f"- **`{_call(function, label)}`**\n  {_line(function)}\n".replace("\n  \n", "\n")


def _signature(one: Any, name: str) -> str:
    return f"```python\n{_call(one, name)}\n```"


def _call(one: Any, name: str) -> str:
    signature = inspect.signature(one)
    given = [str(_bare(value)) for key, value in signature.parameters.items() if key not in ("self", "cls")]
    kinds = [value.kind for key, value in signature.parameters.items() if key not in ("self", "cls")]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        given.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = "" if isinstance(one, type) else f" -> {signature.return_annotation}"
    return f"{name}({', '.join(given)}){result}"


class _Bare:
    """Shows itself as a text without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _bare(value: inspect.Parameter) -> inspect.Parameter:
    """Annotations are texts in these modules, and functions as defaults have no short form."""
    default = _Bare("…") if inspect.isroutine(value.default) else value.default
    return value.replace(annotation=_Bare(str(value.annotation)), default=default)


def _line(one: Any) -> str:
    return " ".join((inspect.getdoc(one) or "").split())


def _prose(one: Any) -> str:
    return (inspect.getdoc(one) or "").strip()


def _callback(framework: str) -> str:
    """Read, not imported: the framework need not be installed."""
    tree = ast.parse((_SOURCE / "checkpoint" / f"{framework}.py").read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "StokerCallback")
    made = next(node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    given = ast.unparse(made.args).removeprefix("self, ")
    name = f"stoker.checkpoint.{framework}.StokerCallback"
    return f"\n### {name}\n\n```python\n{name}({given})\n```\n\n{ast.get_docstring(found)}\n"

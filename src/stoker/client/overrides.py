"""`--set key=value`: settings from the command line, laid over a job's plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from stoker.client.yamltree import Misread, parse, scalar
from stoker.errors import Problem
from stoker.model.fields import ListOf, MapOf, Maybe, Plain, Record, kind_of, plain
from stoker.model.job import Job, SpotOrNot

_KEY = r"[^.\[\]=\s]+(?:\.[^.\[\]=\s]+|\[\d{1,6}\])*"
_STEP = r"\.?([^.\[\]]+)|\[(\d+)\]"


class Overlaid:
    """The data with every setting in it, the paths that were set, and what could not be."""

    def __init__(self, data: Plain) -> None:
        self.data = data
        self.paths: list[str] = []
        self.replaced: list[str] = []  # paths whose old value had to make way for what was set inside
        self.problems: list[Problem] = []


def overlay(data: Plain, sets: Sequence[str]) -> Overlaid:
    """Later settings win. The data given is left as it is."""
    laid = Overlaid(data)
    for setting in sets:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not re.fullmatch(_KEY, key):
            found = f"`{key}`" if equals else "no `=`"
            laid.problems.append(Problem(f"--set {setting}", found, "`key=value`, such as `nodes=2` or `env.A=b`"))
            continue
        try:
            steps = [name or int(index) for name, index in re.findall(_STEP, key)]
            laid.data = _laid(laid, Record(Job), laid.data, steps, _value(key, text), "")
            laid.paths.append(key)
        except Misread as error:
            laid.problems.append(Problem(f"--set {key}", error.problem.found, error.problem.expected))
    return laid


def _laid(laid: Overlaid, kind: Any, current: Plain, steps: Sequence[str | int], value: Plain, path: str) -> Plain:
    """A copy of `current` with the value at the end of the steps."""
    if not steps:
        return value
    if isinstance(steps[0], int):
        return _laid_in_list(laid, kind, current, steps, value, path)
    name, rest = steps[0], steps[1:]
    outer = _opened(kind, current)
    if outer is None:
        laid.replaced.append(path)
        outer = {}
    inner_kind, default = _inside(kind, name)
    where = f"{path}.{name}" if path else name
    inner = _laid(laid, inner_kind, outer.get(name, default), rest, value, where)
    return {**outer, name: inner}


def _laid_in_list(
    laid: Overlaid, kind: Any, current: Plain, steps: Sequence[str | int], value: Plain, path: str
) -> Plain:
    items = list(current) if isinstance(current, list | tuple) else [] if current is None else [current]
    index = int(steps[0])
    if index > len(items):
        count = f"`{path}` has {len(items)} items" if len(items) != 1 else f"`{path}` has 1 item"
        laid.problems.append(Problem(f"--set {path}[{index}]", f"item {index}", f"at most {len(items)}: {count}"))
        return current
    before = items[index] if index < len(items) else None
    inner = _laid(laid, getattr(kind, "item", None), before, steps[1:], value, f"{path}[{index}]")
    return [*items[:index], inner, *items[index + 1 :]]


def _opened(kind: Any, current: Plain) -> Mapping[str, Plain] | None:
    """What a setting inside `current` is added to. None: something is in the way."""
    if isinstance(current, Mapping):
        return current
    if current is None or (isinstance(kind, SpotOrNot) and isinstance(current, bool)):
        return {}
    if isinstance(kind, Record) and kind.short and isinstance(current, str):
        return kind.widen(current)
    return None


def _inside(kind: Any, name: str) -> tuple[Any, Plain]:
    """The kind of the value below this name, and what it is where the file says nothing."""
    if isinstance(kind, SpotOrNot):
        kind = kind.record
    if isinstance(kind, MapOf):
        return kind.item, None
    if isinstance(kind, Record):
        for one in fields(kind.of):
            if one.name == name:
                inner = kind_of(one)
                inner = inner.inner if isinstance(inner, Maybe) else inner
                # Only lists: a mapping's defaults are added when it is read.
                has_default = isinstance(inner, ListOf) and one.default is not MISSING
                return inner, plain(one.default) if has_default else None
    return None, None


def _value(key: str, text: str) -> Plain:
    """Numbers, truth values, quoted text and flow lists as in the file; a command or a variable is text as it is."""
    if key == "run":
        return text
    stripped = text.strip()
    if key.startswith("env.") and not (stripped[:1] in ("'", '"') and stripped[:1] == stripped[-1:]):
        return text
    if stripped[:1] and stripped[0] in "[{\"'":
        return parse(stripped).data
    return scalar(stripped)

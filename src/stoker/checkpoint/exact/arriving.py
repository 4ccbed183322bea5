"""Modules that the script imports later: each is changed right after it was loaded, before anybody has taken a name
from it. Nothing is imported for that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

Change = Callable[[ModuleType], None]

_waiting: dict[str, Change] = {}


def when_imported(name: str, change: Change) -> None:
    """At once where it is there already."""
    if (module := sys.modules.get(name)) is not None:
        change(module)
        return
    if not _waiting:
        sys.meta_path.insert(0, _Watch())
    _waiting[name] = change


class _Watch:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _waiting:
            return None
        spec = PathFinder.find_spec(name, path, target)
        # Only this loader belongs to one module: another one's `exec_module` is shared.
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            _change_after(spec.loader, _waiting.pop(name))
        return spec


def _change_after(loader: Any, change: Change) -> None:
    """The loader stays what it is, for whoever asks it for the source."""

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        change(module)

    loader.exec_module = exec_module

"""What the script does with its files: a record goes where its file goes, and the script does not come upon it."""

from __future__ import annotations

import os
from functools import wraps
from types import ModuleType
from typing import Any

from stoker.checkpoint.exact import sidecar
from stoker.checkpoint.exact.session import Session


def change(module: ModuleType, session: Session) -> None:
    """`os`: `pathlib` and `shutil` move, remove and list by it."""
    for name in ("replace", "rename"):
        _follow(module, name, session, moves=True)
    for name in ("remove", "unlink"):
        _forget(module, name, session)
    _hide(module, session)


def change_copies(module: ModuleType, session: Session) -> None:
    _follow(module, "copyfile", session, moves=False)


def _follow(holder: Any, name: str, session: Session, *, moves: bool) -> None:
    original = getattr(holder, name)

    @wraps(original)
    def follow(source: Any, target: Any, *given: Any, **more: Any) -> Any:
        if not _has_record(source, session) or not isinstance(target, str | os.PathLike):
            return original(source, target, *given, **more)
        session.words.guarded(lambda: sidecar.follow(os.fspath(source), os.fspath(target), copied=not moves))
        result = original(source, target, *given, **more)
        if moves:
            session.words.guarded(lambda: sidecar.forget(os.fspath(source)))
        return result

    setattr(holder, name, follow)


def _forget(holder: Any, name: str, session: Session) -> None:
    original = getattr(holder, name)

    @wraps(original)
    def forget(path: Any, *given: Any, **more: Any) -> Any:
        known = _has_record(path, session) and not given and not more
        result = original(path, *given, **more)
        if known:
            session.words.guarded(lambda: original(sidecar.beside(os.fspath(path))))
        return result

    setattr(holder, name, forget)


def _hide(module: ModuleType, session: Session) -> None:
    """Scripts look for their newest checkpoint in what `os.listdir` gives. `os.scandir` still shows everything: by it
    whole folders are copied and removed."""
    original = module.listdir

    @wraps(original)
    def listdir(path: Any = None) -> list[Any]:
        found: list[Any] = original(path)
        if not session.active:
            return found
        return [one for one in found if not (isinstance(one, str) and one.endswith(sidecar.SUFFIX))]

    module.listdir = listdir  # type: ignore[attr-defined]


def _has_record(path: Any, session: Session) -> bool:
    if not session.active or not isinstance(path, str | os.PathLike):
        return False
    try:
        name = os.fspath(path)
        return isinstance(name, str) and sidecar.SUFFIX not in name and sidecar.beside(name).exists()
    except (OSError, ValueError):  # a name that is nearly too long has no room for ours
        return False

"""Where the hook takes hold: functions that save, load, move and draw, each changed when its module is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

from stoker.checkpoint.exact import sidecar, torchhooks
from stoker.checkpoint.exact.ranks import group
from stoker.checkpoint.exact.session import Session
from stoker.checkpoint.surroundings import is_known

# How `multiprocessing` starts its helpers: these do not train, unless they meet other ranks.
_SPAWNED = ("multiprocessing.spawn", "multiprocessing.forkserver")
_TRACKER = "multiprocessing.resource_tracker"
# Draws of NumPy's own generator that scripts make batches with.
_DRAWS = ("randint", "permutation", "choice", "shuffle")


def install() -> None:
    """Once per process, before the script."""
    if any(_TRACKER in word for word in sys.orig_argv):
        return
    session = Session(active=not any(one in word for word in sys.orig_argv for one in _SPAWNED))
    change_os(os, session)
    when_imported("shutil", lambda module: change_copies(module, session))
    when_imported("torch", lambda module: _checked("torch", session, lambda: torchhooks.change(module, session)))
    when_imported("numpy", lambda module: _checked("numpy", session, lambda: _numpy(module, session)))
    when_imported("numpy.random", lambda module: _checked("numpy", session, lambda: _numpy_draws(module, session)))
    when_imported("pickle", lambda module: _pair(module, "dump", "load", session, place=1, user_only=True))
    for module in ("joblib", "safetensors.torch", "safetensors.numpy"):
        when_imported(module, _of_paths(module, session))
    when_imported(
        "keras.src.saving.saving_api", lambda module: _checked("keras", session, lambda: _keras(module, session))
    )
    for name in ("lightning", "pytorch_lightning"):
        module = "lightning.pytorch.trainer.trainer" if name == "lightning" else "pytorch_lightning.trainer.trainer"
        when_imported(module, _of_lightning(name, session))


def _checked(name: str, session: Session, change: Callable[[], None]) -> None:
    """A version outside the tested range is not patched."""
    if trouble := is_known(name):
        session.words.say(trouble)
        return
    change()


def _of_paths(name: str, session: Session) -> Callable[[ModuleType], None]:
    def change(module: ModuleType) -> None:
        if name == "joblib":
            _checked("joblib", session, lambda: _pair(module, "dump", "load", session, place=1))
        else:
            _checked("safetensors", session, lambda: _pair(module, "save_file", "load_file", session, place=1))

    return change


def _numpy(module: ModuleType, session: Session) -> None:
    for name in ("save", "savez", "savez_compressed"):
        _around_save(module, name, session, place=0, keyword="file", user_only=True)
    _around_load(module, "load", session, keyword="file", user_only=True)


def _numpy_draws(module: ModuleType, session: Session) -> None:
    for name in _DRAWS:
        torchhooks.before_draw(module, name, session)


def _keras(module: ModuleType, session: Session) -> None:
    for save, load in (("save_model", "load_model"), ("save_weights", "load_weights")):
        _around_save(module, save, session, place=1, keyword="filepath")
        place = 0 if load == "load_model" else 1
        _around_load(module, load, session, place=place, keyword="filepath")


def _of_lightning(name: str, session: Session) -> Callable[[ModuleType], None]:
    """All ranks call it, and the first one writes."""

    def change(module: ModuleType) -> None:
        def around() -> None:
            _around_save(module.Trainer, "save_checkpoint", session, place=1, keyword="filepath", by_first=True)

        _checked(name, session, around)

    return change


def _pair(module: ModuleType, save: str, load: str, session: Session, *, place: int, user_only: bool = False) -> None:
    keyword = "filename" if save == "save_file" or module.__name__ == "joblib" else "file"
    _around_save(module, save, session, place=place, keyword=keyword, user_only=user_only)
    _around_load(module, load, session, keyword=keyword, user_only=user_only)


def _around_save(
    holder: Any,
    name: str,
    session: Session,
    *,
    place: int,
    keyword: str,
    user_only: bool = False,
    by_first: bool = False,
) -> None:
    original = getattr(holder, name)

    @wraps(original)
    def save(*given: Any, **more: Any) -> Any:
        target = more.get(keyword, given[place] if len(given) > place else None)
        path, closed = torchhooks.path_of(target)
        if user_only and _is_called_by_library():
            path = None
        if name in ("save", "savez", "savez_compressed") and path is not None and closed:
            path = _with_suffix(path, ".npy" if name == "save" else ".npz")
        if by_first and group()[0]:
            session.event("save")
            path = None
        return session.saving(path, lambda: original(*given, **more), closed=closed)

    setattr(holder, name, save)


def _around_load(
    holder: Any, name: str, session: Session, *, place: int = 0, keyword: str, user_only: bool = False
) -> None:
    original = getattr(holder, name)

    @wraps(original)
    def load(*given: Any, **more: Any) -> Any:
        source = more.get(keyword, given[place] if len(given) > place else None)
        path, _ = torchhooks.path_of(source)
        if user_only and _is_called_by_library():
            path = None
        return session.loading(path, lambda: original(*given, **more))

    setattr(holder, name, load)


def _is_called_by_library() -> bool:
    """Many libraries use `pickle` and NumPy; only what the script itself saves counts."""
    file = sys._getframe(2).f_code.co_filename
    return "site-packages" in file or file.startswith((sys.base_prefix + "/lib", "<frozen"))


def _with_suffix(path: str, suffix: str) -> str:
    return path if path.endswith(suffix) else path + suffix


# Modules that the script imports later: each is changed right after it was loaded, before anybody has taken a name
# from it. Nothing is imported for that.

Change = Callable[[ModuleType], None]

_waiting: dict[str, Change] = {}


def when_imported(name: str, change: Change) -> None:
    """At once, if the module is loaded already."""
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
    """The loader keeps its type, because tools ask it for the source."""

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        change(module)

    loader.exec_module = exec_module


def change_os(module: ModuleType, session: Session) -> None:
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

"""The agent as one file: a zipapp that runs wherever there is a Python, and from which scripts import stoker."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import zipfile
from collections.abc import Sequence
from pathlib import Path

import stoker
from stoker import containers
from stoker.errors import StokerError
from stoker.files import replacing
from stoker.stores.kinds import CARRIED, kinds

PACKAGES = ("agent", "checkpoint", "client", "containers", "files", "model", "notebooks", "stores")
# Runs before the script does.
COMPILED = ("agent", "checkpoint", "errors.py", "files", "model", "providers", "stores", "__init__.py")
_MAIN = b"""import gc

gc.disable()  # there is nothing to collect before the script runs

import sys

if sys.version_info < (3, 11):
    from stoker.agent.older import complete

    complete()

from stoker.agent.__main__ import main

raise SystemExit(main())
"""
_UNCHECKED = (0b01).to_bytes(4, "little")  # bytecode found by the hash of its source, never compared with it


def pack(into: Path, plugins: Sequence[str] = ()) -> Path:
    """Writes `agent-<hash of the code>.pyz` into the folder unless it exists, and returns its path. `plugins` are
    modules of providers to include, see `cloud.py`; of their packages only the names are included."""
    files = _sources(Path(stoker.__file__).parent)
    for name in plugins:
        files = _shipped(name) | files
    path = into / f"agent-{_hash(files)}.pyz"
    if not path.exists():
        into.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            _write(part, files)
    return path


def _sources(root: Path) -> dict[str, bytes]:
    names = [root / "__init__.py", root / "errors.py"]
    for package in PACKAGES:
        names += sorted((root / package).rglob("*.py"))
    found = {f"stoker/{name.relative_to(root).as_posix()}": name.read_bytes() for name in names}
    kept = {name: source for name, source in found.items() if not name.startswith(_of_server())}
    return _with_kinds(_with_engines(kept))


def _of_server() -> tuple[str, ...]:
    """What a node never needs: the server's libraries, and everything of a store kind but what `_with_kinds` adds."""
    packages = {type(kind).__module__.rpartition(".")[0] for kind in kinds().values()}
    libraries = ("stoker/stores/objects/library.py", "stoker/stores/sealing.py")
    return (*libraries, *(f"{one.replace('.', '/')}/" for one in packages if one))


def _with_engines(files: dict[str, bytes]) -> dict[str, bytes]:
    """Every installed container engine, wherever its plug-in is, and the list of them."""
    listed = {one.name: f"{type(one).__module__}:{type(one).__qualname__}" for one in containers.engines().values()}
    for engine in containers.engines().values():
        files = _shipped(type(engine).__module__) | files
    files[f"stoker/containers/{containers.CARRIED}"] = json.dumps(listed, sort_keys=True).encode()
    return files


def _with_kinds(files: dict[str, bytes]) -> dict[str, bytes]:
    """The node side of every installed kind of store, wherever its plug-in is, and the list of them."""
    listed = {kind.name: f"{type(kind).__module__}:{type(kind).__qualname__}" for kind in kinds().values()}
    for kind in kinds().values():
        for module in (type(kind).__module__, *kind.carried):
            files = _shipped(module) | files
    files[f"stoker/stores/{CARRIED}"] = json.dumps(listed, sort_keys=True).encode()
    return dict(sorted(files.items()))


def _shipped(name: str) -> dict[str, bytes]:
    """A module of a plug-in, or a package with everything in it; of its parent packages only the names, because what
    they import may be missing on a node."""
    found = importlib.util.find_spec(name)
    if found is None or not found.origin:
        hint = "reinstall the plug-in that it belongs to"
        raise StokerError(f"the module `{name}`, which is shipped with the agent, was not found", hint=hint)
    place, parts = Path(found.origin), name.split(".")
    files = {f"{'/'.join(parts[:depth])}/__init__.py": b"" for depth in range(1, len(parts))}
    if not found.submodule_search_locations:
        return {**files, f"{'/'.join(parts)}.py": place.read_bytes()}
    inside = sorted(place.parent.rglob("*.py"))
    return files | {f"{'/'.join(parts)}/{one.relative_to(place.parent).as_posix()}": one.read_bytes() for one in inside}


def _hash(files: dict[str, bytes]) -> str:
    found = hashlib.sha256(_MAIN + importlib.util.MAGIC_NUMBER)
    for name, source in files.items():
        found.update(f"{name}\0{len(source)}\0".encode() + source)
    return found.hexdigest()[:16]


def _write(path: Path, files: dict[str, bytes]) -> None:
    """Not compressed, for speed. Other Python versions ignore the bytecode and use the source."""
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as packed:
        _add(packed, "__main__.py", _MAIN, compiled=True)
        for name, source in files.items():
            _add(packed, name, source, compiled=_runs_early(name))


def _runs_early(name: str) -> bool:
    top, _, rest = name.partition("/")
    return name.endswith(".py") and (top != "stoker" or rest.split("/")[0] in COMPILED)


def _add(packed: zipfile.ZipFile, name: str, source: bytes, *, compiled: bool) -> None:
    packed.writestr(zipfile.ZipInfo(name), source)
    if compiled:
        code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
        mark = importlib.util.source_hash(source)
        packed.writestr(zipfile.ZipInfo(f"{name}c"), importlib.util.MAGIC_NUMBER + _UNCHECKED + mark + code)

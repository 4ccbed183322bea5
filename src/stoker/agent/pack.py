"""The agent as one file: a zipapp that runs wherever there is a Python, and from which scripts import stoker."""

from __future__ import annotations

import hashlib
import importlib.util
import marshal
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import stoker

PACKAGES = ("agent", "checkpoint", "client", "files", "model", "notebooks", "stores")
# What runs before the script does.
COMPILED = ("agent", "checkpoint", "errors.py", "files", "model", "providers", "stores", "__init__.py")
_MAIN = b"""import gc

gc.disable()  # there is nothing to collect before the script runs

from stoker.agent.__main__ import main

raise SystemExit(main())
"""
_UNCHECKED = (0b01).to_bytes(4, "little")  # bytecode found by the hash of its source, never compared with it


def pack(into: Path, plugins: Sequence[str] = ()) -> Path:
    """Writes `agent-<hash of the code>.pyz` into the folder where it is not there yet, and returns its path. `plugins`
    are modules of providers that go with it, see `cloud.py`; of the packages they are in, the names alone."""
    files = _sources(Path(stoker.__file__).parent)
    for name in plugins:
        files |= _plugin(name)
    path = into / f"agent-{_hash(files)}.pyz"
    if not path.exists():
        into.mkdir(parents=True, exist_ok=True)
        part = into / f".part-{os.getpid()}-{os.urandom(4).hex()}"
        _write(part, files)
        part.replace(path)
    return path


def _sources(root: Path) -> dict[str, bytes]:
    names = [root / "__init__.py", root / "errors.py"]
    for package in PACKAGES:
        names += sorted((root / package).rglob("*.py"))
    return {f"stoker/{name.relative_to(root).as_posix()}": name.read_bytes() for name in names}


def _plugin(name: str) -> dict[str, bytes]:
    found = importlib.util.find_spec(name)
    if found is None or not found.origin:
        raise ModuleNotFoundError(f"there is no module `{name}` to ship with the agent")
    place, parts = Path(found.origin), name.split(".")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    files = {f"{folder}/__init__.py": b"" for folder in above if folder != "stoker"}
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
    """Not compressed, for speed. Another Python than this one passes over the bytecode and takes the source."""
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as packed:
        _add(packed, "__main__.py", _MAIN, compiled=True)
        for name, source in files.items():
            _add(packed, name, source, compiled=name.split("/")[1] in COMPILED or not name.startswith("stoker/"))


def _add(packed: zipfile.ZipFile, name: str, source: bytes, *, compiled: bool) -> None:
    packed.writestr(zipfile.ZipInfo(name), source)
    if compiled:
        code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
        mark = importlib.util.source_hash(source)
        packed.writestr(zipfile.ZipInfo(f"{name}c"), importlib.util.MAGIC_NUMBER + _UNCHECKED + mark + code)

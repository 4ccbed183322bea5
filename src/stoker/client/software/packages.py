"""The packages of an interpreter, from the names of its folders: it is not started, nothing is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PYTHON = "python"  # the name under which the interpreter's own version is listed


def packages_of(python: str) -> dict[str, str]:
    """Name to version, sorted. An interpreter whose packages cannot be found gives an empty dict, never an error."""
    found: dict[str, str] = {}
    for folder in folders_of(python):
        with suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208  # names only: thousands of Paths would cost more
                if name.endswith((".dist-info", ".egg-info")):
                    package, _, version = name.rpartition(".")[0].partition("-")
                    found.setdefault(package.lower().replace("_", "-").replace(".", "-"), version.partition("-py")[0])
    version = _version(python)
    return ({PYTHON: version} if version else {}) | dict(sorted(found.items()))


def folders_of(python: str) -> Iterator[Path]:
    """In search order: the first version of a package is the one that is imported."""
    if python == sys.executable:
        yield from (Path(place) for place in sys.path if place.endswith(("site-packages", "dist-packages")))
        return
    prefix = _prefix(python)
    yield from _libraries(prefix)
    settings = _virtual(prefix)
    if settings.get("include-system-site-packages") == "true" and settings.get("home"):
        yield from _libraries(Path(settings["home"]).parent)


def _libraries(prefix: Path) -> Iterator[Path]:
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"):
        yield from sorted(prefix.glob(pattern))
    yield prefix / "Lib" / "site-packages"


def _version(python: str) -> str:
    if python == sys.executable:
        return ".".join(str(part) for part in sys.version_info[:3])
    prefix = _prefix(python)
    settings = _virtual(prefix)
    told = settings.get("version") or settings.get("version_info", "")
    if told:
        return ".".join(told.split(".")[:3])
    return next((path.name.removeprefix("python") for path in sorted(prefix.glob("lib/python3.*"))), "")


def _prefix(python: str) -> Path:
    folder = Path(python).absolute().parent
    return folder.parent if folder.name in ("bin", "Scripts") else folder


def _virtual(prefix: Path) -> dict[str, str]:
    """The configuration of a virtual environment; empty if it is not one."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}

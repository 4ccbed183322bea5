"""Packages that no index has, as wheels for the upload: built from a project's folder, or from the installed files."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from stoker.client.software.installed import Distribution
from stoker.client.software.resolving import tool
from stoker.client.source import screening
from stoker.client.source.secretvalues import secrets_in
from stoker.client.source.tree import scan
from stoker.errors import StokerError
from stoker.files.whole import replacing
from stoker.model.snapshot import EntryKind
from stoker.stores.unused import mark_used

_BUILD_S = 600.0
_LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
_NAMES = ("SETUPTOOLS_SCM_PRETEND_VERSION", "PDM_BUILD_SCM_VERSION")  # a copy has no history to read the version from
_PRODUCTS = ("build", "dist", "outputs", "checkpoints")  # at the top of a project: not part of its code
_WHEN = (2000, 1, 1, 0, 0, 0)


class NotSent(Exception):
    """A package cannot be included, and why."""


def wheel_of(one: Distribution, place: Path, environ: Mapping[str, str]) -> Path:
    """The wheel, built unless it exists below `place`: its name identifies its content. Raises NotSent, and
    SnapshotRefused if its code contains a secret."""
    made = _built(one, one.project, place, environ) if one.project else _packed(one, place)
    _check_fits(one, made)
    return made


def _check_fits(one: Distribution, wheel: Path) -> None:
    """Code that was compiled here runs on machines of the same kind."""
    system = wheel.stem.rpartition("-")[2]
    if system == "any" or (sys.platform == "linux" and platform.machine() == "x86_64" and "linux" in system):
        return
    raise NotSent(f"`{one.name}` was compiled for {system}, but machines of a cloud run Linux on x86_64")


def _built(one: Distribution, project: Path, place: Path, environ: Mapping[str, str]) -> Path:
    """By uv, in a copy without ignored files: the folder itself does not change."""
    try:
        index = place / f"{hashlib.sha256(os.fsencode(project)).hexdigest()[:32]}.index"
        tree = scan(project, index=index, exclude=_PRODUCTS)
    except (StokerError, OSError) as error:
        raise NotSent(f"`{one.name}`, installed from {project}, cannot be read: {error}") from None
    screening.check(tree.findings)
    kept = place / f"{tree.snapshot.id[:32]}-{one.public}"
    if found := next(kept.glob("*.whl"), None):
        mark_used(kept)
        return found
    uv = tool(environ)
    if uv is None:
        raise NotSent(f"`{one.name}`, installed from {project}, requires uv to be built: pip install uv")
    with tempfile.TemporaryDirectory(prefix="stoker-build-", dir=place) as folder:
        copy, out = Path(folder, "source"), Path(folder, "out")
        for entry in tree.snapshot.entries:
            if entry.kind is EntryKind.FILE:
                target = copy / entry.path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(project / entry.path, target)
        _run([uv, "build", "--quiet", "--wheel", "--out-dir", str(out), str(copy)], one, project, environ)
        wheel = next(out.glob("*.whl"))
        kept.mkdir(parents=True, exist_ok=True)
        return wheel.replace(kept / wheel.name)


def _run(words: list[str], one: Distribution, project: Path, environ: Mapping[str, str]) -> None:
    env = {**environ, **dict.fromkeys(_NAMES, one.version)}
    try:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=_BUILD_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotSent(f"`{one.name}`, installed from {project}, cannot be built: {error}") from None
    if done.returncode:
        said = [line.strip(" ×╰─▶│├┬") for line in done.stderr.splitlines() if line.strip()]
        raise NotSent(f"`{one.name}`, installed from {project}, cannot be built: {' '.join(said[-3:])[:400]}")


def _packed(one: Distribution, place: Path) -> Path:
    """The installed files. Their list has hashes, so it identifies the result."""
    kept = place / hashlib.sha256(one.record).hexdigest()[:32]
    if found := next(kept.glob("*.whl"), None):
        mark_used(kept)
        return found
    paths = [row[0] for row in csv.reader(io.StringIO(one.record.decode(errors="replace"))) if row and row[0]]
    if not paths or one.folder.suffix != ".dist-info":
        raise NotSent(f"`{one.name}` was not installed from a wheel, so its files are unknown")
    folder = one.folder.name
    inside = sorted(path for path in paths if _is_content(path, folder))
    name = f"{folder.removesuffix('.dist-info')}-{_tag(one)}.whl"
    kept.mkdir(parents=True, exist_ok=True)
    with replacing(kept / name) as part:
        _write(one, inside, part)
    return kept / name


def _is_content(path: str, folder: str) -> bool:
    parts = PurePosixPath(path).parts
    if path.startswith(("/", "..")) or "__pycache__" in parts:
        return False  # commands and the like, which the installer creates again
    return not (parts[0] == folder and parts[-1] in _LEFT_OUT and len(parts) == 2)


def _write(one: Distribution, paths: list[str], part: Path) -> None:
    screen = screening.Screen(one.site)
    rows: list[tuple[str, str, str]] = []
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as wheel:
        for path in paths:
            try:
                data = (one.site / path).read_bytes()
            except OSError:
                raise NotSent(f"`{one.name}` lacks its file {path}: reinstall it") from None
            if "dir_info" in one.origin:  # the user's own code, not a published package
                screen.keeps(path, secrets_in(data[: 1 << 20], screening.kind_of(path)), len(data))
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append((path, f"sha256={digest}", str(len(data))))
            wheel.writestr(_member(path), data)
        screening.check(screen.findings)
        record = f"{one.folder.name}/RECORD"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
        wheel.writestr(_member(record), text.getvalue())


def _member(path: str) -> zipfile.ZipInfo:
    """Always the same bytes for the same files."""
    info = zipfile.ZipInfo(path, _WHEN)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _tag(one: Distribution) -> str:
    """The tags for the wheel's name: of several tags for one build, all that differ."""
    try:
        tags = re.findall(r"^Tag:\s*(\S+)-(\S+)-(\S+)\s*$", (one.folder / "WHEEL").read_text(encoding="utf-8"), re.M)
    except OSError:
        tags = []
    if not one.is_compiled:
        return "py3-none-any"
    if not tags:
        raise NotSent(f"`{one.name}` is compiled, and its wheel does not say for which system")
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))

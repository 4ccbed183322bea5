"""What a machine of a cloud would install: resolved beforehand with the index, or built as wheels for the upload."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stoker.client.software.installed import Distribution
from stoker.client.source import screening
from stoker.client.source.secretvalues import secrets_in
from stoker.client.source.tree import scan
from stoker.errors import StokerError
from stoker.files import replacing, write_whole
from stoker.model import wire
from stoker.model.snapshot import EntryKind
from stoker.stores.trees.clearing import mark_used

_PLATFORM = "x86_64-manylinux_2_28"
_WITHIN_S = 60.0
_MACHINES = ("x86_64", "aarch64")
_ABSENT = re.compile(r"(?:no versions? of |Because )([A-Za-z0-9][\w.-]*?)(?:==\S+| was not found)", re.I)
UNREACHED = re.compile(r"error sending request|failed to fetch|dns error|connect|timed out|certificate|offline", re.I)
_UNREACHED_MARK = "unreached"  # a file with the time of the last failed request
_UNREACHED_S = 120.0
_SETTING = re.compile(r"(UV|PIP)_.*")
_EDITION = 1  # of the cached results


@dataclass(frozen=True, slots=True)
class Resolved:
    """`names` are the packages that would be installed, including what that system needs and this one does not."""

    names: tuple[str, ...] = ()
    size_bytes: int = 0  # to download, if the index reports it; 0: unknown
    built: tuple[str, ...] = ()  # without a suitable wheel: the machine has to build them
    absent: tuple[str, ...] = ()  # versions that the index does not have
    reason: str = ""  # why it is unknown, or cannot be installed
    checked: bool = True


def tool(environ: Mapping[str, str]) -> str | None:
    """The uv that came with Stoker, preferred over any other."""
    beside = Path(sys.executable).with_name("uv.exe" if sys.platform == "win32" else "uv")
    return str(beside) if beside.is_file() else shutil.which("uv", path=environ.get("PATH"))


def resolve(
    lines: Iterable[str], python: str, place: Path, environ: Mapping[str, str], env: Mapping[str, str]
) -> Resolved:
    """`env` is the job's own. Results are cached: the same list gives the same result."""
    text = "".join(f"{line}\n" for line in lines)
    settings = {name: value for name, value in env.items() if _SETTING.fullmatch(name)}
    key = hashlib.sha256(json.dumps([_EDITION, text, python, settings]).encode()).hexdigest()[:32]
    kept = place / f"{key}.json"
    with suppress(OSError, ValueError, TypeError, LookupError):
        found = wire.load(Resolved, kept.read_bytes())
        mark_used(kept)
        return found
    uv = tool(environ)
    if uv is None or _is_unreached(place):
        why = "the package index timed out a moment ago" if uv else "uv is not installed: pip install uv"
        return Resolved(reason=why, checked=False)
    place.mkdir(parents=True, exist_ok=True)
    listed = place / f"{key}.in"
    listed.write_text(text)
    words = ["--python-platform", _PLATFORM, "--override", str(listed), str(listed)]
    words += ["--python-version", python] if python else []
    found = _compiled(uv, words, environ, settings, place)
    if found.checked and not found.absent:
        write_whole(kept, wire.dump(found))
    listed.unlink(missing_ok=True)
    return found


def uv_wheels(place: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Where machines download uv: a processor's name to the URL of a wheel with its hash. Empty: unknown."""
    uv = tool(environ)
    if uv is None or _is_unreached(place):
        return {}
    with suppress(OSError, subprocess.SubprocessError):
        version = subprocess.run([uv, "--version"], capture_output=True, text=True, timeout=_WITHIN_S).stdout.split()[
            1:2
        ]
        kept = place / f"uv-{''.join(version)}.json"
        with suppress(OSError, ValueError):
            known = dict(json.loads(kept.read_bytes()))
            mark_used(kept)
            return known
        done = _asked(uv, ["--no-deps", "--universal", "-"], environ, place, f"uv=={''.join(version)}\n")
        found = _wheels_of_uv(done.stdout)
        if found:
            kept.write_text(json.dumps(found))
            return found
    (place / _UNREACHED_MARK).touch()
    return {}


def _is_unreached(place: Path) -> bool:
    """An index that has just timed out is not waited for again."""
    try:
        return time.time() - (place / _UNREACHED_MARK).stat().st_mtime < _UNREACHED_S
    except OSError:
        return False


def _wheels_of_uv(lock: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _packages(lock):
        for wheel in package.get("wheels", ()):
            url, sha256 = str(wheel.get("url", "")), str(wheel.get("hashes", {}).get("sha256", ""))
            for machine in _MACHINES:
                public = url.startswith("https://") and "@" not in url  # a URL with a login is not revealed
                if public and sha256 and re.search(rf"manylinux_2_17_{machine}\b", url):
                    found[machine] = f"{url.partition('#')[0]}#sha256={sha256}"
    return found


def _compiled(
    uv: str, words: list[str], environ: Mapping[str, str], settings: Mapping[str, str], place: Path
) -> Resolved:
    try:
        done = _asked(uv, words, environ, place, settings=settings)
    except (OSError, subprocess.SubprocessError) as error:
        return Resolved(reason=str(error), checked=False)
    if done.returncode:
        said = " ".join(line.strip(" ×╰─▶│├┬") for line in done.stderr.splitlines() if line.strip())
        absent = tuple(dict.fromkeys(_ABSENT.findall(said)))
        unreached = not absent or (UNREACHED.search(said) is not None and "No solution" not in said)
        return Resolved(reason=said[:400], absent=() if unreached else absent, checked=not unreached)
    packages = _packages(done.stdout)
    sized = [wheel.get("size") for one in packages for wheel in one.get("wheels", [])[:1]]
    complete = bool(sized) and all(isinstance(size, int) for size in sized)
    return Resolved(
        tuple(f"{one['name']} {one.get('version', '')}".strip() for one in packages),
        sum(size for size in sized if isinstance(size, int)) if complete else 0,
        tuple(str(one["name"]) for one in packages if not one.get("wheels") and "sdist" in one),
    )


def _asked(
    uv: str,
    words: list[str],
    environ: Mapping[str, str],
    place: Path,
    given: str = "",
    settings: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    env = from_outside(environ, settings or {})
    asked = [uv, "pip", "compile", "--quiet", "--no-config", "--format", "pylock.toml", *words]
    return subprocess.run(asked, env=env, input=given, cwd=place, capture_output=True, text=True, timeout=_WITHIN_S)


def from_outside(environ: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """As a fresh machine would ask: without this computer's own settings, except its network settings."""
    env = {name: value for name, value in environ.items() if not name.startswith(("UV_", "PIP_"))}
    env |= {name: value for name, value in environ.items() if name in ("UV_CACHE_DIR", "UV_NATIVE_TLS")}
    return env | {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1", "UV_PYTHON_DOWNLOADS": "never"} | dict(settings)


def _packages(lock: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = tomllib.loads(lock).get("packages", [])
    except tomllib.TOMLDecodeError:
        return []
    return found


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

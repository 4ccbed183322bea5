"""What a machine of a cloud would install, resolved beforehand with the package index: by uv, for that machine's
system."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.files.whole import write_whole
from stoker.model import wire
from stoker.stores.unused import mark_used

_PLATFORM = "x86_64-manylinux_2_28"
_WITHIN_S = 60.0
_MACHINES = ("x86_64", "aarch64")
_ABSENT = re.compile(r"(?:no versions? of |Because )([A-Za-z0-9][\w.-]*?)(?:==\S+| was not found)", re.I)
_UNREACHED = re.compile(r"error sending request|failed to fetch|dns error|connect|timed out|certificate|offline", re.I)
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
        unreached = not absent or (_UNREACHED.search(said) is not None and "No solution" not in said)
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
    """As a fresh machine would: without this computer's own settings, except its network settings."""
    env = {name: value for name, value in environ.items() if not name.startswith(("UV_", "PIP_"))}
    env |= {name: value for name, value in environ.items() if name in ("UV_CACHE_DIR", "UV_NATIVE_TLS")}
    env |= {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1", "UV_PYTHON_DOWNLOADS": "never"}
    env |= settings or {}
    asked = [uv, "pip", "compile", "--quiet", "--no-config", "--format", "pylock.toml", *words]
    return subprocess.run(asked, env=env, input=given, cwd=place, capture_output=True, text=True, timeout=_WITHIN_S)


def _packages(lock: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = tomllib.loads(lock).get("packages", [])
    except tomllib.TOMLDecodeError:
        return []
    return found

"""The Python an environment asks for, among those on this machine."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from urllib.request import Request, urlopen

from stoker.agent.attempt.endings import Broken
from stoker.agent.environment.interpreter import which

BRING_S = 300.0  # for a Python to be downloaded: until then nothing else is heard of
_ASK = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.executable)"


def find_python(wanted: str, usual: str, uv: str | None, environ: Mapping[str, str]) -> str:
    """The path of an interpreter. `wanted` is a version such as `3.12`, or a path; `usual` is tried first."""
    if "/" in wanted or wanted.startswith("~"):
        path = wanted.replace("~", environ.get("HOME", "~"), 1) if wanted.startswith("~") else wanted
        if not _version(path):
            found = "is not there" if not Path(path).exists() else "is not a Python that runs"
            raise Broken(f"the Python of this run, `{wanted}`, {found}", "check `environment.python`")
        return path
    if not re.fullmatch(r"\d+(\.\d+){0,2}", wanted):
        raise Broken(f"`{wanted}` is neither a Python version such as `3.12` nor a path", "check `environment.python`")
    seen: dict[str, str] = {}
    for candidate in _candidates(wanted, usual, uv, environ):
        if told := _version(candidate):
            version, path = told
            if version == wanted or version.startswith(f"{wanted}."):
                return candidate if candidate == usual else path
            seen.setdefault(version, path)
    found = ", ".join(f"{version} (`{path}`)" for version, path in seen.items()) or "no Python at all"
    hint = f"install it with `uv python install {wanted}`, or set `environment.python` to one that is there"
    raise Broken(f"Python {wanted} is not on this machine; found {found}", hint)


def bring_python(wanted: str, uv: str, environ: Mapping[str, str], tell: Callable[[str, str], None]) -> str | None:
    """A version that this machine lacks, by uv. None where it cannot be had, which is told."""
    for verb in (["install", wanted], ["find", "--no-project", "--managed-python", wanted]):
        reason = ""
        try:
            told = subprocess.run(
                [uv, "python", *verb],
                capture_output=True,
                text=True,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                timeout=BRING_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            reason = str(error)
        if reason or told.returncode:
            reason = reason or " ".join(told.stderr.split())[-300:]
            tell("environment", f"Python {wanted} could not be brought to this machine: {reason}")
            return None
    tell("environment", f"Python {wanted} was brought to this machine")
    return told.stdout.strip()


def _candidates(wanted: str, usual: str, uv: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    yield usual
    for name in (f"python{wanted}", f"python{'.'.join(wanted.split('.')[:2])}", "python3", "python"):
        if found := which(name, environ.get("PATH", "")):
            yield found
    versions = Path(environ.get("PYENV_ROOT") or Path(environ.get("HOME", "/"), ".pyenv"), "versions")
    yield from (str(found) for found in sorted(versions.glob(f"{wanted}*/bin/python")))  # its shims hide most of them
    if uv:
        settings = {**environ, "UV_PYTHON_DOWNLOADS": "never"}
        asked = [uv, "python", "find", "--no-project", "--system", wanted]
        told = subprocess.run(asked, capture_output=True, text=True, env=settings, stdin=subprocess.DEVNULL)
        if not told.returncode:
            yield told.stdout.strip()


def _version(python: str) -> tuple[str, str] | None:
    """Its version and its own idea of where it is; None if it does not run."""
    if not os.access(python, os.X_OK):
        return None
    try:
        asked = [python, "-I", "-S", "-c", _ASK]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    version, _, path = told.stdout.strip().partition(" ")
    return (version, path) if not told.returncode and path else None


# uv, for a machine that lacks it: from where the submission says, and never another than it says.

_WITHIN_S = 60.0
_MOST_BYTES = 200_000_000


def bring_uv(wheels: Mapping[str, str], place: Path, tell: Callable[[str, str], None]) -> str | None:
    """Its path. None where it cannot be had, which is told."""
    url, _, sha256 = wheels.get(os.uname().machine, "").partition("#sha256=")
    if not url.startswith("https://") or len(sha256) != 64:
        return None
    there = place / f"uv-{sha256[:16]}"
    if there.exists():
        return str(there)
    try:
        with urlopen(Request(url), timeout=_WITHIN_S) as answer:
            data = answer.read(_MOST_BYTES)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise OSError("it came damaged")
        place.mkdir(parents=True, exist_ok=True)
        part = there.with_name(f"{there.name}.{os.getpid()}.part")
        with zipfile.ZipFile(BytesIO(data)) as wheel:
            name = next(one for one in wheel.namelist() if one.endswith("/scripts/uv"))
            part.write_bytes(wheel.read(name))
        part.chmod(0o755)
        part.replace(there)
    except (OSError, ValueError, StopIteration, HTTPException, zipfile.BadZipFile) as error:
        tell("environment", f"uv could not be brought to this machine: {error}")
        return None
    return str(there)

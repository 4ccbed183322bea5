"""The Python that an environment requires, among those on this machine, the one that a run's commands find, and which
package a missing module is in."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from io import BytesIO
from pathlib import Path
from urllib.request import Request, urlopen

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.machine.machine import NodeFolder
from stoker.files import replacing
from stoker.model.cause import Cause
from stoker.model.job.job import Packages
from stoker.model.orders import Orders

BRING_S = 300.0  # for the download of a Python, which blocks everything else
_ASK = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.executable)"


def find_python(wanted: str, usual: str, uv: str | None, environ: Mapping[str, str]) -> str:
    """The path of an interpreter. `wanted` is a version such as `3.12`, or a path; `usual` is tried first."""
    if "/" in wanted or wanted.startswith("~"):
        path = wanted.replace("~", environ.get("HOME", "~"), 1) if wanted.startswith("~") else wanted
        if not version_of(path):
            found = "does not exist" if not Path(path).exists() else "is not a working Python"
            raise AttemptBroken(
                f"the Python of this run, `{wanted}`, {found}", "check `environment.python`", cause=Cause.PYTHON_MISSING
            )
        return path
    if not re.fullmatch(r"\d+(\.\d+){0,2}", wanted):
        raise AttemptBroken(
            f"`{wanted}` is neither a Python version such as `3.12` nor a path",
            "check `environment.python`",
            cause=Cause.PYTHON_MISSING,
        )
    seen: dict[str, str] = {}
    for candidate in _candidates(wanted, usual, uv, environ):
        if told := version_of(candidate):
            version, path = told
            if version == wanted or version.startswith(f"{wanted}."):
                return candidate if candidate == usual else path
            seen.setdefault(version, path)
    found = ", ".join(f"{version} (`{path}`)" for version, path in seen.items()) or "no Python at all"
    hint = f"install it with `uv python install {wanted}`, or set `environment.python` to an installed one"
    raise AttemptBroken(
        f"Python {wanted} was not found on this machine; found {found}", hint, cause=Cause.PYTHON_MISSING
    )


def bring_python(wanted: str, uv: str, environ: Mapping[str, str], tell: Callable[[str, str], None]) -> str | None:
    """Downloads a missing version with uv. None where that fails, which is reported."""
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
            tell("environment", f"could not download Python {wanted}: {reason}")
            return None
    tell("environment", f"downloaded Python {wanted}")
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


def version_of(python: str) -> tuple[str, str] | None:
    """Its version and its own path; None if it does not run."""
    if not os.access(python, os.X_OK):
        return None
    try:
        asked = [python, "-I", "-S", "-c", _ASK]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    version, _, path = told.stdout.strip().partition(" ")
    return (version, path) if not told.returncode and path else None


# uv, for a machine without it: from the URL in the submission, with exactly that hash.

_WITHIN_S = 60.0
_MOST_BYTES = 200_000_000


def bring_uv(wheels: Mapping[str, str], place: Path, tell: Callable[[str, str], None]) -> str | None:
    """Its path. None where the download fails, which is reported."""
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
            raise OSError("checksum mismatch")
        place.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(BytesIO(data)) as wheel, replacing(there) as part:
            name = next(one for one in wheel.namelist() if one.endswith("/scripts/uv"))
            part.write_bytes(wheel.read(name))
            part.chmod(0o755)
    except (OSError, ValueError, StopIteration, HTTPException, zipfile.BadZipFile) as error:
        tell("environment", f"could not download uv: {error}")
        return None
    return str(there)


@dataclass(frozen=True, slots=True)
class Interpreter:
    python: str
    bin: str = ""  # first in PATH; empty: PATH already leads to this Python
    venv: str = ""  # empty: not in a venv


def interpreter(python: str, folder: NodeFolder, path: str) -> Interpreter:
    """How to make `python` this Python. Raises Broken where it cannot be run."""
    check_python(python)
    home = Path(python).parent
    if (home.parent / "pyvenv.cfg").exists():
        return Interpreter(python, str(home), str(home.parent))
    if _same(which("python", path), python):
        return Interpreter(python)
    if _same(str(home / "python"), python):
        return Interpreter(python, str(home))
    return Interpreter(python, str(_shim(python, folder.commands)))


def check_python(python: str) -> None:
    if not os.access(python, os.X_OK) or not Path(python).is_file():
        raise AttemptBroken(
            f"the Python of this run, `{python}`, was not found on this machine",
            "choose another with `--set environment.python=...`",
            cause=Cause.PYTHON_MISSING,
        )


def which(name: str, path: str) -> str | None:
    """As `shutil.which`, which takes longer to import than a search does."""
    for folder in path.split(os.pathsep):
        found = os.path.join(folder, name)  # noqa: PTH118  # text in, text out
        if os.access(found, os.X_OK) and os.path.isfile(found):  # noqa: PTH113  # as above
            return found
    return None


def _same(one: str | None, other: str) -> bool:
    return one is not None and Path(one).exists() and Path(one).samefile(other)


def _shim(python: str, commands: Path) -> Path:
    """A folder in which this Python is called `python`. Not a link: Python would look for its packages next to it."""
    commands.mkdir(mode=0o700, exist_ok=True)
    for name in ("python", "python3"):
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
        (commands / name).chmod(0o700)
    return commands


_LOST = re.compile(rb"^(?:\[?[\w ]+\]?: )?ModuleNotFoundError: No module named '([^'\n]{1,200})'", re.M)
# Packages whose name differs from that of their module.
_PACKAGES = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "gitpython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "IPython": "ipython",
    "magic": "python-magic",
    "mpl_toolkits": "matplotlib",
    "MySQLdb": "mysqlclient",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pl_bolts": "lightning-bolts",
    "psycopg2": "psycopg2-binary",
    "pycocotools": "pycocotools",
    "pytorch_lightning": "pytorch-lightning",
    "sentence_transformers": "sentence-transformers",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "skopt": "scikit-optimize",
    "tensorboardX": "tensorboardx",
    "torch_geometric": "torch-geometric",
    "umap": "umap-learn",
    "usearch": "usearch",
    "yaml": "pyyaml",
}


def hint(tail: bytes, orders: Orders) -> str:
    """What to do where the end of a script's log reports a missing module; empty where it does not."""
    found = _LOST.findall(tail)
    if not found:
        return ""
    module = found[-1].decode(errors="replace")
    top = module.partition(".")[0]
    known = _PACKAGES.get(module) or _PACKAGES.get(top)
    package = (known or top).replace("_", "-")
    own = "" if known else "; if it is your own code, `stoker plan` shows whether it is uploaded"
    return _advice(f"`{module}` is in the package `{package}`", package, orders) + own


def _advice(what: str, package: str, orders: Orders) -> str:
    environment = orders.job.environment
    if environment.requirements:
        return f"{what}: add the line `{package}` to `{environment.requirements}`"
    if orders.python:
        named = environment.python or orders.python
        return f"{what}: install it with `{named if '/' in named else f'python{named}'} -m pip install {package}`"
    if environment.python and not environment.is_taken_along:
        return f"{what}, which `{environment.python}` on the node lacks: name a requirements file as `environment`"
    if environment.packages is Packages.NONE:
        return f"{what}: it is not installed because of `packages: none` in the job file"
    others = environment.packages if isinstance(environment.packages, tuple) else ()
    line = f"environment: {{packages: [{', '.join((*others, package))}]}}"
    return f"{what}: install it here, and add the line `{line}` to the job file"

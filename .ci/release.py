"""Builds the wheel and the sdist, installs each in an empty environment, and runs the quickstart against it there.

    .ci/release.py [FOLDER]    builds into FOLDER, `dist` unless told

Nothing is published. Ends with 1, and says why, where what was built is not what a user may get.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICKSTART = ROOT / "docs" / "quickstart.md"
BIN = Path(sys.executable).parent
NOT_SHIPPED = (".venv", ".services", ".git/", ".mypy_cache", "__pycache__", "outputs/")


class Unfit(Exception):
    """What was built must not be published."""


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0] if arguments else ROOT / "dist").resolve()
    try:
        wheel, sdist = built(folder)
        for one, files in ((wheel, in_wheel(wheel)), (sdist, in_sdist(sdist))):
            require_complete(one, files)
            print(f"{one.name}: {len(files)} files, {one.stat().st_size / 1000:.0f} kB")
        for one in (wheel, sdist):
            began = time.monotonic()
            try_out(one)
            print(f"{one.name}: the quickstart runs in an empty environment ({time.monotonic() - began:.0f} s)")
    except Unfit as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"ready to publish: {wheel} {sdist}")
    return 0


def built(folder: Path) -> tuple[Path, Path]:
    """By the build backend of the lock, so that no build environment is fetched."""
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "hatchling", "build", "--directory", str(folder)], "the build fails")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    wheel, sdist = folder / f"stoker-{version}-py3-none-any.whl", folder / f"stoker-{version}.tar.gz"
    if found := sorted(path.name for path in (wheel, sdist) if not path.exists()):
        raise Unfit(f"the build did not write {' and '.join(found)} into {folder}")
    return wheel, sdist


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())


def in_sdist(sdist: Path) -> set[str]:
    """With `src/` left out of the names, so that both hold the package under the same ones."""
    with tarfile.open(sdist) as packed:
        names = [one.name.partition("/")[2] for one in packed.getmembers() if one.isfile()]
    return {name.removeprefix("src/") for name in names}


def require_complete(built: Path, files: set[str]) -> None:
    """Every file of the package that git knows is there, and nothing that a developer's folder holds besides."""
    listed = run(["git", "-C", str(ROOT / "src"), "ls-files", "stoker"], "git cannot list the package").split()
    if missing := sorted({name for name in listed if (ROOT / "src" / name).exists()} - files):
        raise Unfit(f"{built.name} lacks {len(missing)} files of the package, such as {missing[0]}")
    if stray := [name for name in sorted(files) if any(mark in name for mark in NOT_SHIPPED)]:
        raise Unfit(f"{built.name} holds {stray[0]}, which is not part of Stoker")


def try_out(distribution: Path) -> None:
    """The quickstart's commands print there what the page says. Nothing of this repository can be imported."""
    uv = str(BIN / "uv")
    with tempfile.TemporaryDirectory(prefix="stoker-release-") as place:
        python = Path(place) / "venv" / "bin" / "python"
        run([uv, "venv", "--quiet", "--python", sys.executable, str(python.parents[1])], "no environment can be made")
        install = [uv, "pip", "install", "--quiet", "--python", str(python), str(distribution)]
        run(install, f"{distribution.name} cannot be installed")
        where = run([str(python), "-c", "import stoker; print(stoker.__file__)"], "it cannot be imported").strip()
        if not Path(where).is_relative_to(place):
            raise Unfit(f"`import stoker` takes {where}, not what was installed")
        run([str(python), str(ROOT / "docs" / "record.py"), "--check", str(QUICKSTART)], "the quickstart differs")


def run(words: list[str], trouble: str) -> str:
    """What it prints. Outside of the repository's environment: no variable of Python's own gets through."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(words, cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unfit(f"{trouble}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

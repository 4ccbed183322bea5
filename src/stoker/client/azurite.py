"""Installing Azurite, the Blob service of the twin, where this computer has none: once, with npm."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from stoker.errors import AzuriteMissing, TwinFailed
from stoker.model.home import Home

VERSION = "3.35.0"
_INSTALL_S = 900.0
SAY_EVERY_S = 5.0


def install(home: Home, say: Callable[[str], None]) -> None:
    """Into Stoker's own folder. Twice is fine."""
    npm = shutil.which("npm")
    if npm is None:
        raise AzuriteMissing(
            "the twin keeps blobs with Azurite, which needs Node.js and npm, and there is no `npm`",
            hint="apt-get install nodejs npm",
        )
    say(f"installing Azurite {VERSION}, the twin's Blob service, into {home.azurite}: once, for about a minute")
    home.azurite.mkdir(mode=0o700, parents=True, exist_ok=True)
    manners = ["--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"]
    words = [npm, "install", "--prefix", str(home.azurite), *manners, f"azurite@{VERSION}"]
    try:
        code, said = _watched(words, home.azurite, say)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TwinFailed(f"Azurite could not be installed: {error}", hint=" ".join(words)) from error
    if code:
        last = (said.strip().splitlines() or ["npm gave no reason"])[-1]
        raise TwinFailed(f"Azurite could not be installed: {last}", hint=" ".join(words))
    say("Azurite is installed")


def _watched(words: Sequence[str], folder: Path, say: Callable[[str], None]) -> tuple[int, str]:
    """The exit code of npm, which is silent as it works, and what it says of a failure."""
    begun = time.monotonic()
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, **pipes) as npm:  # type: ignore[call-overload]  # pipes are as they should
        while True:
            try:
                _, said = npm.communicate(timeout=SAY_EVERY_S)
            except subprocess.TimeoutExpired:
                passed_s = time.monotonic() - begun
                if passed_s > _INSTALL_S:
                    npm.kill()
                    raise
                say(f"installing Azurite: {_size_bytes(folder) / 1e6:.0f} MB after {passed_s:.0f} s")
                continue
            return npm.returncode, said


def _size_bytes(folder: Path) -> int:
    total = 0
    for one in folder.rglob("*"):
        with suppress(OSError):  # npm moves files as it works
            total += one.lstat().st_size
    return total

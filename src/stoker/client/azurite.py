"""Installing Azurite, the Blob service of the twin, where this computer has none: once, with npm."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

from stoker.errors import AzuriteMissing, TwinFailed
from stoker.model.home import Home

VERSION = "3.35.0"
_INSTALL_S = 900.0


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
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_INSTALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TwinFailed(f"Azurite could not be installed: {error}", hint=" ".join(words)) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["npm gave no reason"])[-1]
        raise TwinFailed(f"Azurite could not be installed: {last}", hint=" ".join(words))

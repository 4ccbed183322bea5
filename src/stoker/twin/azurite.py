"""Where Azurite is on this computer: the program that the twin's Blob service is."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from stoker.errors import AzuriteMissing, TwinFailed

_PROGRAM = Path("node_modules/azurite/dist/src/blob/main.js")
_GUARD = Path(__file__).with_name("azurite_guard.js")
_LOGIN = Path(__file__).with_name("azurite_login.js")
# Quiet, nothing sent to anybody, and SDKs that are newer than it are welcome.
_MANNERS = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--oauth", "basic")


def command(places: Iterable[Path], location: Path, port: int) -> list[str]:
    """What starts it. `places` are folders that npm has installed it into; after them the path is searched.

    Raises AzuriteMissing where it is nowhere, and TwinFailed where it is and Node.js is not.
    """
    program = find(places)
    if program is None:
        raise AzuriteMissing(
            "the twin keeps blobs with Azurite, and that is not installed", hint="npm install --global azurite"
        )
    node = shutil.which("node")
    if node is None:
        raise TwinFailed(f"{program} needs Node.js, and there is no `node`", hint="apt-get install nodejs")
    where = ["--location", str(location), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    return [node, "--require", str(_GUARD), "--require", str(_LOGIN), str(program), *_MANNERS, *where]


def find(places: Iterable[Path]) -> Path | None:
    for place in places:
        if (place / _PROGRAM).is_file():
            return place / _PROGRAM
    for name, inside in (("azurite-blob", "."), ("azurite", "blob")):
        if found := shutil.which(name):
            program = Path(found).resolve().parent / inside / "main.js"  # npm puts links to the package on the path
            if program.is_file():
                return program
    return None

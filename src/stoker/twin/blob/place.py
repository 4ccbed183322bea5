"""Where Azurite is installed on this computer: the program behind the twin's Blob service."""

from __future__ import annotations

import base64
import errno
import json
import random
import secrets
import shutil
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stoker.errors import AzuriteMissing, TwinFailed
from stoker.files.whole import write_whole

_PROGRAM = Path("node_modules/azurite/dist/src/blob/main.js")
_GUARD = Path(__file__).with_name("azurite_guard.js")
_LOGIN = Path(__file__).with_name("azurite_login.js")
# Quiet, without telemetry, and accepting SDKs that are newer than it.
_MANNERS = ("--silent", "--disableTelemetry", "--skipApiVersionCheck", "--oauth", "basic")


def command(places: Iterable[Path], location: Path, port: int) -> list[str]:
    """The command that starts it. `places` are folders of npm installations, searched before PATH.

    Raises AzuriteMissing where it is not installed, and TwinFailed where only Node.js is missing.
    """
    program = find(places)
    if program is None:
        raise AzuriteMissing(
            "the twin's Blob service requires Azurite, which is not installed", hint="npm install --global azurite"
        )
    node = shutil.which("node")
    if node is None:
        raise TwinFailed(f"{program} requires Node.js, but `node` was not found", hint="apt-get install nodejs")
    where = ["--location", str(location), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    return [node, "--require", str(_GUARD), "--require", str(_LOGIN), str(program), *_MANNERS, *where]


def find(places: Iterable[Path]) -> Path | None:
    for place in places:
        if (place / _PROGRAM).is_file():
            return place / _PROGRAM
    for name, inside in (("azurite-blob", "."), ("azurite", "blob")):
        if found := shutil.which(name):
            program = Path(found).resolve().parent / inside / "main.js"  # npm links packages into PATH
            if program.is_file():
                return program
    return None


# The address of the twin's Blob service: a port and a key that stay the same, since a store refers to them.

ACCOUNT, CONTAINER = "stokertwin", "runs"
# Below the ephemeral range: the port should be free after a reboot, too.
_PORTS = range(20_000, 32_768)


@dataclass(frozen=True, slots=True)
class AzuritePlace:
    port: int
    key: str = field(repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def told(self) -> dict[str, str]:
        """What a client needs to connect."""
        return {"url": f"{self.endpoint}/{ACCOUNT}/{CONTAINER}", "account": ACCOUNT, "key": self.key}


def find_place(path: Path) -> AzuritePlace:
    """The one in the file, which is created at the first time."""
    try:
        return AzuritePlace(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        place = AzuritePlace(_free_port(), base64.b64encode(secrets.token_bytes(64)).decode())
        write_whole(path, json.dumps(asdict(place)), mode=0o600)
        return place
    except (OSError, ValueError, TypeError) as error:
        raise TwinFailed(f"could not read {path}: {error}", hint=f"rm {path}") from error


def check_free(port: int) -> None:
    if not _is_free(port):
        raise TwinFailed(
            f"port {port}, which the twin uses for its blobs, is in use", hint=f"ss -ltnp 'sport = :{port}'"
        )


def _free_port() -> int:
    for port in random.sample(_PORTS, 100):
        if _is_free(port):
            return port
    raise TwinFailed(f"no port from {_PORTS.start} to {_PORTS.stop - 1} is free")


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True

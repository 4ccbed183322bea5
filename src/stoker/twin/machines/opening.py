"""The machines of a folder, of the kind that this computer supports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from stoker.errors import TwinFailed
from stoker.twin.machines import Acknowledged, Machines, TokenFor
from stoker.twin.machines.outward import PORT, go_out, variables
from stoker.twin.machines.plain import Plain
from stoker.twin.machines.power import Enclosure
from stoker.twin.machines.yard import Yard

TOOLS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "mount": "mount"}
_TRIAL = """set -e
mkdir upper work lower root
mount -t overlay -o volatile,lowerdir=lower,upperdir=upper,workdir=work overlay root
ip link add wire0 type veth peer name wire1
ip link add switch0 type bridge
"""


def open_machines(
    folder: Path,
    token_for: TokenFor,
    *,
    acknowledged: Acknowledged = lambda _name, _events: None,
    first_events_s: Callable[[str], float] = lambda _name: 0.0,
    walls: bool | None = None,
    shown: tuple[str, ...] = (),
    authority: Path | None = None,
    outward: bool = False,
) -> Machines:
    """Finds the existing machines of the folder. `walls`: isolation; None: where it is supported. `shown` are folders
    of the host that machines see besides the operating system; `authority` is a certificate file that they trust.
    `outward`: programs that use `https_proxy` reach what the host does.

    Raises `TwinFailed` where another process uses the folder, or isolation is required and not supported.
    """
    folder = folder.resolve()
    refusal = why_no_walls(folder) if walls is not False else "not requested"
    if walls and refusal:
        raise TwinFailed(f"isolated machines are not supported here: {refusal}", hint="stoker twin up --plain")
    enclosure: Enclosure = Plain(authority)
    if not refusal:
        from stoker.twin.machines.walled import Walled  # its system calls exist on Linux alone

        enclosure = Walled(folder, shown, authority, variables() if outward else {})
    return Yard(folder, enclosure, token_for, acknowledged, first_events_s, {PORT: go_out} if outward else {})


def why_no_walls(folder: Path) -> str:
    """Empty where namespaces and overlays in the folder are permitted: tested by creating some, which leave nothing."""
    if sys.platform != "linux":
        return f"{sys.platform} does not support namespaces"
    if os.geteuid() != 0:
        return "root is required"
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            return f"`{tool}` is missing; try `apt-get install {package}`"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    trial = folder / f".trial-{os.urandom(4).hex()}"
    trial.mkdir()
    words = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "sh", "-c", _TRIAL]
    try:
        found = subprocess.run(words, cwd=trial, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return "" if found.returncode == 0 else (found.stderr.strip().splitlines() or ["unshare failed"])[-1]

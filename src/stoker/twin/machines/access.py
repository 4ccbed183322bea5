"""Ways into a machine: its sshd, started for each connection with the account and keys of its VM, and scripts from
outside, run as the agent of a real VM runs those of its cloud."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.twin.machines.folder import MachineFolder
from stoker.twin.machines.guest.marked import end
from stoker.twin.machines.power import Enclosure, RunningPower

PORT = 22
PROGRAM = "/usr/sbin/sshd"
LACKING = "ssh is unavailable, because this computer has no sshd: apt-get install openssh-server sudo"
_CONFIG = """\
HostKey /etc/ssh/twin_host_key
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitRootLogin no
PidFile none
Subsystem sftp internal-sftp
"""


def preparation(facts: Mapping[str, Any]) -> str:
    """A repeatable shell script for root: the account, its keys, and the machine's own key."""
    user = str((facts.get("osProfile") or {}).get("adminUsername") or "azureuser")
    keys = "".join(f"{one['keyData'].strip()}\n" for one in facts.get("publicKeys") or () if one.get("keyData"))
    home = f"/home/{user}"
    return f"""\
set -e
getent passwd {user} >/dev/null || useradd -m -d {home} -s /bin/bash -p '*' {user}
getent passwd sshd >/dev/null || useradd --system -d /run/sshd -s /usr/sbin/nologin sshd
mkdir -p -m 700 {home}/.ssh
printf %s {shlex.quote(keys)} > {home}/.ssh/authorized_keys
chmod 600 {home}/.ssh/authorized_keys
chown -R {user}: {home}/.ssh
mkdir -p /etc/sudoers.d /run/sshd
echo '{user} ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/90-{user}
chmod 440 /etc/sudoers.d/90-{user}
[ -f /etc/ssh/twin_host_key ] || ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/twin_host_key
printf %s {shlex.quote(_CONFIG)} > /etc/ssh/twin_sshd_config
"""


def serve(enter: Sequence[str], variables: Mapping[str, str], connection: int, console: Path) -> None:
    """Serves one connection. `enter` is the command prefix that enters the machine."""
    words = [*enter, PROGRAM, "-i", "-e", "-f", "/etc/ssh/twin_sshd_config"]
    with console.open("ab") as said:
        subprocess.run(
            words,
            env=dict(variables),
            stdin=connection,
            stdout=connection,
            stderr=said,
            start_new_session=True,
            cwd="/",
        )


TOOK_TOO_LONG = 124  # the exit code of `timeout`
_FOLDER = "var/lib/waagent/run-command"


def run_script(
    enclosure: Enclosure, power: RunningPower, folder: MachineFolder, number: int, script: str, timeout_s: float
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr. Background processes continue, unless it timed out."""
    place = folder.root / _FOLDER / str(number)
    file = _write(place, enclosure.rewritten(folder, script))
    words, variables = enclosure.command(power, folder, file)
    code = _run(words, variables, place, timeout_s)
    out, err = ((place / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return code, out, err


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "script.sh"
    file.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}", encoding="utf-8")
    file.chmod(0o700)
    return file


def _run(words: list[str], variables: dict[str, str], folder: Path, timeout_s: float) -> int:
    """Output goes to files: background processes may keep them open."""
    mark = os.urandom(16).hex()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(
            words,
            env={**variables, "INVOCATION_ID": mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            cwd="/",
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end(f"INVOCATION_ID={mark}", child.pid)
            child.wait()
            return TOOK_TOO_LONG
    return code if code >= 0 else 128 - code

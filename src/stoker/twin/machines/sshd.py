"""The sshd of a machine: started for each connection, with the account and the keys that its VM was made with."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PORT = 22
PROGRAM = "/usr/sbin/sshd"
LACKING = "machines have no sshd, since this computer has none: apt-get install openssh-server sudo"
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
    """A shell script for root that may run again: the account, its keys, and the machine's own key."""
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
    """One connection, to its end. `enter` are the words that bring a command into the machine."""
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

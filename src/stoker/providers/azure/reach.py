"""How people get to a machine in Azure: by ssh where a port was opened for it, and by Azure's run-command always. Pure
but for the two questions to the cloud."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stoker.errors import Conflict
from stoker.model.node.visit import Entrance, Said
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.cloud import Cloud
from stoker.providers.azure.deployment.cloudinit import CONFIG
from stoker.providers.azure.deployment.template import ADMIN
from stoker.providers.azure.naming import Place

FOLDER = "/var/lib/stoker/node"
_AGENT = '"$(ls -t /var/lib/stoker/agent-*.pyz | head -n 1)"'
_ENTER = f"exec python3 -I -S {_AGENT} enter --folder {FOLDER}"
_MARK = "stoker-exit-code:"


def entrance(cloud: Cloud, account: Account, place: Place) -> Entrance:
    """Raises Conflict, with what to set, where no port is open or nobody's key would open it."""
    if not account.open_ssh or not account.ssh_key:
        lacking = (
            "`open_ssh`" if account.ssh_key else "`open_ssh` and `ssh_key`" if not account.open_ssh else "`ssh_key`"
        )
        raise Conflict(
            f"machines of this workspace let nobody in by ssh: its account does not set {lacking}",
            hint='set "open_ssh": true, "ssh_key" to your public key and "ssh_from" to your public address in '
            "azure.json for the runs to come; stoker exec needs none of them",
        )
    address = cloud.public_address(place)
    if not address:
        raise Conflict(
            "this machine was started without a public address",
            hint="it gets one where `open_ssh` is set before its start; stoker exec needs none",
        )
    return Entrance(("sudo", "-n", "sh", "-c", f'{_ENTER} -- "$@"', "stoker"), address=address, user=ADMIN)


def run_command(cloud: Cloud, place: Place, words: Sequence[str]) -> Said:
    """By Azure's own agent, which a machine has whatever became of ours. It gives back the last 4 kB, at the end."""
    script = [f"sh -c '{_ENTER} --config {CONFIG} -- \"$@\"' stoker {shlex.join(words)}", f'echo "{_MARK}$?"']
    out, err = streams(cloud.run_command(place, script))
    said, _, code = out.rpartition(_MARK)
    return Said(int(code) if code.strip().isdigit() else 125, said.encode(), err.encode())


def streams(message: str) -> tuple[str, str]:
    """What Azure says of a command: `Enable succeeded: \\n[stdout]\\n…\\n[stderr]\\n…`."""
    _, _, rest = message.partition("[stdout]\n")
    out, _, err = rest.rpartition("\n[stderr]\n")
    return out, err

"""How people reach a VM in Azure: by ssh where its port is open, and by Azure's run-command always. Pure but for two
requests to the cloud.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stoker.errors import Conflict
from stoker.model.node.visit import Entrance, Said
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.cloud import AzureCloud
from stoker.providers.azure.deployment.booting import CONFIG
from stoker.providers.azure.deployment.template import ADMIN
from stoker.providers.azure.naming import NodePlace

FOLDER = "/var/lib/stoker/node"
_AGENT = '"$(ls -t /var/lib/stoker/agent-*.pyz | head -n 1)"'
_ENTER = f"exec python3 -I -S {_AGENT} enter --folder {FOLDER}"
_MARK = "stoker-exit-code:"


def entrance(cloud: AzureCloud, account: Account, place: NodePlace) -> Entrance:
    """Raises Conflict, with the settings to change, where no port is open or no key is set."""
    if not account.open_ssh or not account.ssh_key:
        lacking = (
            "`open_ssh`" if account.ssh_key else "`open_ssh` and `ssh_key`" if not account.open_ssh else "`ssh_key`"
        )
        raise Conflict(
            f"the VMs of this workspace do not accept ssh: the account does not set {lacking}",
            hint='set "open_ssh": true, "ssh_key" to your public key and "ssh_from" to your public address in '
            "azure.json for future runs; stoker exec needs none of them",
        )
    address = cloud.public_address(place)
    if not address:
        raise Conflict(
            "this VM has no public address",
            hint="set `open_ssh` before the VM starts; stoker exec works without it",
        )
    return Entrance(("sudo", "-n", "sh", "-c", f'{_ENTER} -- "$@"', "stoker"), address=address, user=ADMIN)


def run_command(cloud: AzureCloud, place: NodePlace, words: Sequence[str]) -> Said:
    """By Azure's VM agent, which works whatever the state of ours. It returns the last 4 kB when the command ends."""
    script = [f"sh -c '{_ENTER} --config {CONFIG} -- \"$@\"' stoker {shlex.join(words)}", f'echo "{_MARK}$?"']
    out, err = streams(cloud.run_command(place, script))
    said, _, code = out.rpartition(_MARK)
    return Said(int(code) if code.strip().isdigit() else 125, said.encode(), err.encode())


def streams(message: str) -> tuple[str, str]:
    """Azure's report of a command: `Enable succeeded: \\n[stdout]\\n…\\n[stderr]\\n…`."""
    _, _, rest = message.partition("[stdout]\n")
    out, _, err = rest.rpartition("\n[stderr]\n")
    return out, err

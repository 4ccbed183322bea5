"""The role that each node has over itself: an administrator's, one created at first use, or a built-in one."""

from __future__ import annotations

from stoker.errors import NotAllowed
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.cloud import AzureCloud
from stoker.providers.azure.setup import roles
from stoker.providers.azure.setup.resources import ROLES_API, agrees, node_role

# "Desktop Virtualization Power On Off Contributor": the smallest built-in role with which a VM can stop its own
# billing. It may deallocate, and delete nothing: the disk stays until somebody removes it.
POWER_ROLE = "40c5ff49-9181-41f8-ae61-143b0e78555e"


def role_of_nodes(cloud: AzureCloud, account: Account) -> str:
    """Its id. A login that may not define roles gets the built-in role with the fewest rights."""
    if account.role:
        return account.role
    role = roles.own_role(account.subscription, account.workspace, "node")
    id, wanted = roles.role_id(account.subscription, role), node_role(account.subscription, account.workspace)
    try:
        found = cloud.get(id, ROLES_API)
        if found is None or not agrees(wanted, found):
            cloud.put_by_id(id, ROLES_API, wanted)
    except NotAllowed:
        return POWER_ROLE
    return role

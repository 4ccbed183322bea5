"""Managed disks: created with a VM or alone, and billed as long as they exist."""

from __future__ import annotations

from stoker.twin.arm import generic
from stoker.twin.arm.requests.ask import ArmAnswer, Ask, accepted, begin, needed, route
from stoker.twin.market import catalog, prices
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import Charge, CloudState, Resource

DISKS = "Microsoft.Compute/disks"
KINDS = (
    "Standard_LRS",
    "StandardSSD_LRS",
    "StandardSSD_ZRS",
    "Premium_LRS",
    "Premium_ZRS",
    "PremiumV2_LRS",
    "UltraSSD_LRS",
)
_MAKE_S = 0.2
_MOST_GB = 32_767


@route("PUT", DISKS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """A new one is accepted with 202, unlike most resources."""
    there = cloud.find(ask.id)
    given = ask.body.get("properties", {})
    option = str(needed(given, "creationData", "createOption"))
    if option not in ("Empty", "FromImage", "Copy", "Attach"):
        raise invalid(f"The twin makes no disk by '{option}'; it has 'Empty' and, for a VM's system, 'FromImage'.")
    size = int(given.get("diskSizeGB") or catalog.DEFAULT_DISK_GB)
    kind = str((ask.body.get("sku") or {}).get("name", "Standard_LRS"))
    if kind not in KINDS:
        raise invalid(f"The value '{kind}' of parameter sku.name is not valid: {', '.join(KINDS)} are.")
    if not 1 <= size <= _MOST_GB:
        raise invalid(f"Disk size provided is not valid. Disk size should be between 1 and {_MOST_GB} GB.")
    if there and size < there.properties["diskSizeGB"]:
        raise invalid(f"Disk {there.name} cannot be resized to {size} GB: a disk cannot be made smaller.", "BadRequest")
    owner = {"managedBy": there.body["managedBy"]} if there and "managedBy" in there.body else {}
    properties = {
        **given,
        "diskSizeGB": size,
        "diskState": "Attached" if owner else "Unattached",
        "timeCreated": there.properties["timeCreated"] if there else ask.stamp(),
        "uniqueId": there.properties["uniqueId"] if there else ask.uuid("disk"),
    }
    cloud, answer = generic.store(cloud, ask, properties, **owner)
    meant = "disk" if kind.startswith(("Premium", "Ultra")) else "standard disk"
    cloud = prices.begin(cloud, Charge(answer.body["id"], meant, str(size), answer.body["location"], ask.now))
    if there:
        return cloud, answer
    cloud, operation = begin(cloud, ask, "put", _MAKE_S)
    return cloud, accepted(ask, operation, answer.body)


def _free(_cloud: CloudState, disk: Resource) -> None:
    if owner := disk.body.get("managedBy"):
        raise conflict(f"Disk {disk.name} is attached to VM {owner}.", "OperationNotAllowed")


generic.readable(DISKS)
generic.taggable(DISKS)
generic.deletable(DISKS, _free)

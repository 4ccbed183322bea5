"""Managed disks: created alone or with a VM, attached and detached, billed as long as they exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, route
from stoker.twin.market import catalog, prices
from stoker.twin.refusal import Refused, conflict, invalid
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
    cloud, answer = resources.store(cloud, ask, properties, **owner)
    meant = "disk" if kind.startswith(("Premium", "Ultra")) else "standard disk"
    cloud = prices.begin(cloud, Charge(answer.body["id"], meant, str(size), answer.body["location"], ask.now))
    if there:
        return cloud, answer
    cloud, operation = begin(cloud, ask, "put", _MAKE_S)
    return cloud, accepted(ask, operation, answer.body)


def _free(_cloud: CloudState, disk: Resource) -> None:
    if owner := disk.body.get("managedBy"):
        raise conflict(f"Disk {disk.name} is attached to VM {owner}.", "OperationNotAllowed")


resources.readable(DISKS)
resources.taggable(DISKS)
resources.deletable(DISKS, _free)


DETACH_S = 0.5
_MOST = 8  # data disks


def made(cloud: CloudState, ask: Ask, region: str, given: Mapping[str, Any]) -> tuple[CloudState, dict[str, Any]]:
    """Creates or attaches the disks of a new VM."""
    storage = dict(given["storageProfile"])
    system = {"createOption": "FromImage", "osType": "Linux", **(storage.get("osDisk") or {})}
    there = cloud.find(ask.id)  # an earlier try at the same VM has left its disk
    if there:
        system.setdefault("name", there.properties["storageProfile"]["osDisk"]["name"])
    system.setdefault("name", f"{ask.target.name}_OsDisk_1_{ask.uuid('disk').replace('-', '')}")
    cloud, storage["osDisk"] = _disk(cloud, ask, region, system)
    cloud, storage["dataDisks"] = _data_disks(cloud, ask, region, storage.get("dataDisks") or ())
    if isinstance(image := storage.get("imageReference"), Mapping) and image.get("version") == "latest":
        storage["imageReference"] = {**image, "exactVersion": catalog.VERSION}
    return cloud, {**given, "storageProfile": storage}


def changed(
    cloud: CloudState, ask: Ask, vm: Resource, wanted: Sequence[Mapping[str, Any]]
) -> tuple[CloudState, list[Any]]:
    """Makes the data disks match the list: attaches new ones, detaches missing ones."""
    kept = [one for one in wanted if not one.get("toBeDetached")]
    cloud, disks = _data_disks(cloud, ask, vm.region, kept)
    ids_ = {str(one["managedDisk"]["id"]).lower() for one in disks}
    for before in vm.properties["storageProfile"].get("dataDisks") or ():
        if str(before["managedDisk"]["id"]).lower() not in ids_:
            cloud = _detached(cloud, str(before["managedDisk"]["id"]), ask.now)
    return cloud, disks


def _data_disks(
    cloud: CloudState, ask: Ask, region: str, wanted: Sequence[Mapping[str, Any]]
) -> tuple[CloudState, list[dict[str, Any]]]:
    luns = [one.get("lun") for one in wanted]
    if len(luns) > _MOST:
        raise conflict(f"The maximum number of data disks allowed to be attached to a VM of this size is {_MOST}.")
    if None in luns or len(set(luns)) != len(luns):
        raise invalid("The value of parameter dataDisk.lun is invalid: each data disk needs a lun of its own.")
    found = []
    for one in wanted:
        named = {"name": _name(cloud, ask, one), **one}
        cloud, disk = _disk(cloud, ask, region, named)
        found.append(disk)
    return cloud, found


def _name(cloud: CloudState, ask: Ask, wanted: Mapping[str, Any]) -> str:
    there = cloud.find(str((wanted.get("managedDisk") or {}).get("id", "")))
    return there.name if there else f"{ask.target.name}_DataDisk_{wanted.get('lun', 0)}"


def _disk(cloud: CloudState, ask: Ask, region: str, wanted: Mapping[str, Any]) -> tuple[CloudState, dict[str, Any]]:
    managed = dict(wanted.get("managedDisk") or {})
    if str(wanted.get("createOption", "")).lower() == "attach" or managed.get("id"):
        disk = cloud.find(str(managed.get("id", "")))
        if disk is None:
            raise Refused(404, "NotFound", f"Disk {managed.get('id')} is not found.")
    else:
        disk = cloud.find(ids.resource_id(ask.target.subscription, ask.target.group, DISKS, str(wanted["name"])))
        if disk is None:
            cloud, disk = _new(cloud, ask, region, wanted)
    _refuse_owned(disk, ask)
    if disk.region != region:
        raise conflict(
            f"Disk {disk.name} in location {disk.region} cannot be attached to a VM in location {region}.", "BadRequest"
        )
    owned = replace(disk, body={**disk.body, "managedBy": ask.id}).having(diskState="Attached")
    shown = {"deleteOption": "Detach", **wanted, "diskSizeGB": disk.properties["diskSizeGB"]}
    return cloud.put(owned), {**shown, "managedDisk": {**managed, "id": disk.id}}


def _new(cloud: CloudState, ask: Ask, region: str, wanted: Mapping[str, Any]) -> tuple[CloudState, Resource]:
    id = ids.resource_id(ask.target.subscription, ask.target.group, DISKS, str(wanted["name"]))
    sku = {"name": (wanted.get("managedDisk") or {}).get("storageAccountType") or _usual(ask)}
    option = "FromImage" if wanted.get("osType") else "Empty"
    given = {
        "creationData": {"createOption": option},
        "diskSizeGB": wanted.get("diskSizeGB") or catalog.DEFAULT_DISK_GB,
    }
    cloud, answer = put(cloud, ask.at(id, {"location": region, "sku": sku, "properties": given}))
    return cloud, cloud.resources[str(answer.body["id"]).lower()]


def _usual(ask: Ask) -> str:
    size = catalog.SIZES.get(
        str(((ask.body.get("properties") or {}).get("hardwareProfile") or {}).get("vmSize")).lower()
    )
    return "Premium_LRS" if size is None or size.premium else "Standard_LRS"


def _refuse_owned(disk: Resource, ask: Ask) -> None:
    owner = str(disk.body.get("managedBy", ""))
    if disk.secret.get("detached_at", 0) > ask.now:
        raise conflict(
            f"Cannot attach data disk '{disk.name}' to VM '{ask.target.name}' because the disk is currently being "
            "detached "
            "or the last detach operation failed. Please wait until the disk is completely detached and then try "
            "again.",
            "AttachDiskWhileBeingDetached",
        )
    if owner and owner.lower() != ask.id.lower():
        raise conflict(
            f"Disk {disk.id} cannot be attached as the disk is already owned by VM {owner}.", "ConflictingUserInput"
        )


def _detached(cloud: CloudState, id: str, now: float) -> CloudState:
    disk = cloud.find(id)
    if disk is None:
        return cloud
    body = {key: value for key, value in disk.body.items() if key != "managedBy"}
    free = replace(disk, body=body, secret={"detached_at": now + DETACH_S})
    return cloud.put(free.having(diskState="Unattached"))

"""The disks of a VM: created or attached with it, attached and detached later, each used by one VM at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm.requests.ask import Ask
from stoker.twin.arm.vms.disks import DISKS
from stoker.twin.arm.vms.disks import put as put_disk
from stoker.twin.market import catalog, images
from stoker.twin.refusal import Refused, conflict, invalid
from stoker.twin.state import CloudState, Resource

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
        storage["imageReference"] = {**image, "exactVersion": images.VERSION}
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
    cloud, answer = put_disk(cloud, ask.at(id, {"location": region, "sku": sku, "properties": given}))
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

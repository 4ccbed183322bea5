"""Managed disks: made with a VM or by themselves, and paid for as long as they exist."""

from __future__ import annotations

from stoker.twin import catalog, meter
from stoker.twin.arm import generic
from stoker.twin.arm.ask import Answer, Ask, route
from stoker.twin.refusal import conflict
from stoker.twin.state import Charge, Cloud, Resource

DISKS = "Microsoft.Compute/disks"


@route("PUT", DISKS)
def put(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    there = cloud.find(ask.id)
    size = int(ask.body.get("properties", {}).get("diskSizeGB") or catalog.DEFAULT_DISK_GB)
    owner = {"managedBy": there.body["managedBy"]} if there and "managedBy" in there.body else {}
    properties = {
        **ask.body.get("properties", {}),
        "diskSizeGB": size,
        "diskState": "Attached" if owner else "Unattached",
        "timeCreated": there.properties["timeCreated"] if there else ask.stamp(),
        "uniqueId": there.properties["uniqueId"] if there else ask.uuid("disk"),
    }
    cloud, answer = generic.store(cloud, ask, properties, **owner)
    return meter.begin(cloud, Charge(answer.body["id"], "disk", str(size), answer.body["location"], ask.now)), answer


def _free(_cloud: Cloud, disk: Resource) -> None:
    if owner := disk.body.get("managedBy"):
        raise conflict(f"Disk {disk.name} is attached to VM {owner}.", "OperationNotAllowed")


generic.readable(DISKS)
generic.taggable(DISKS)
generic.deletable(DISKS, _free)

"""The instance view: how the machine behind a VM is doing."""

from __future__ import annotations

from typing import Any

from stoker.twin import images
from stoker.twin.arm import generic
from stoker.twin.arm.ask import Answer, Ask, route
from stoker.twin.lifecycle import VMS
from stoker.twin.state import Cloud, Power, Resource

_TITLES = {
    Power.STARTING: "VM starting",
    Power.RUNNING: "VM running",
    Power.STOPPING: "VM stopping",
    Power.STOPPED: "VM stopped",
    Power.DEALLOCATING: "VM deallocating",
    Power.DEALLOCATED: "VM deallocated",
}


@route("GET", VMS, "instanceView")
def get(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return cloud, Answer(200, view(cloud, ask, generic.require(cloud, ask)))


def with_view(cloud: Cloud, ask: Ask, vm: Resource) -> dict[str, Any]:
    return vm.having(instanceView=view(cloud, ask, vm)).answer()


def status_only(cloud: Cloud, ask: Ask, vm: Resource) -> dict[str, Any]:
    """How it is doing, and next to nothing of what it is: no tags, priority or disks."""
    kept = {"id": vm.id, "name": vm.name, "type": vm.kind, "location": vm.region}
    told = {"vmId": vm.properties["vmId"], "provisioningState": vm.properties["provisioningState"]}
    return {**kept, "properties": {**told, "instanceView": view(cloud, ask, vm)}}


def view(cloud: Cloud, ask: Ask, vm: Resource) -> dict[str, Any]:
    instance = cloud.instance(vm.id)
    state = str(vm.properties["provisioningState"]).lower()
    statuses = [_status(f"ProvisioningState/{state}", f"Provisioning {state}", ask.stamp(vm.created_at))]
    if instance:
        statuses.append(_status(f"PowerState/{instance.power}", _TITLES[instance.power]))
    told: dict[str, Any] = {"statuses": statuses, "disks": [], "hyperVGeneration": _generation(vm)}
    if instance and instance.power is Power.RUNNING:
        ready = {**_status("ProvisioningState/succeeded", "Ready", ask.stamp()), "message": "Guest Agent is running"}
        told |= {
            "computerName": (vm.properties.get("osProfile") or {}).get("computerName", vm.name),
            "osName": "linux",
            "vmAgent": {"vmAgentVersion": "2.11.1.4", "statuses": [ready], "extensionHandlers": []},
        }
    if extensions := [one for one in cloud.below(vm.id) if one.kind.startswith(f"{VMS}/")]:
        told["extensions"] = [_extension(one) for one in extensions]
    return told


def _generation(vm: Resource) -> str:
    image = images.named(vm.properties["storageProfile"].get("imageReference") or {})
    return image.generation if image else "V2"


def _extension(extension: Resource) -> dict[str, Any]:
    state = str(extension.properties["provisioningState"])
    return {
        "name": extension.name,
        "type": f"{extension.properties.get('publisher')}.{extension.properties.get('type')}",
        "statuses": [_status(f"ProvisioningState/{state.lower()}", f"Provisioning {state.lower()}")],
    }


def _status(code: str, title: str, time: str = "") -> dict[str, Any]:
    level = "Error" if code.endswith("/failed") else "Info"
    told = {"code": code, "level": level, "displayStatus": title}
    return {**told, "time": time} if time else told

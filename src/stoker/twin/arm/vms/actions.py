"""Actions on a VM: whether one is available, power, commands, and a simulated eviction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, objects, route
from stoker.twin.arm.vms import parts, rules
from stoker.twin.market import catalog, prices
from stoker.twin.refusal import (
    Refused,
    allocation_failed,
    conflict,
    invalid,
    overconstrained,
    sku_not_available,
    unreadable,
)
from stoker.twin.state import CloudState, Instance, MachinePower, Resource
from stoker.twin.time import power, weather
from stoker.twin.time.power import VMS

_SPOT_SINCE = "2019-03-01"


def admit(cloud: CloudState, ask: Ask) -> catalog.TwinSize:
    """The size, if every immediate check passes."""
    wanted = str(needed(ask.body, "properties", "hardwareProfile", "vmSize"))
    needed(ask.body, "properties", "storageProfile")
    needed(ask.body, "properties", "networkProfile")
    region = resources.region_of(cloud, ask)
    if wanted.lower() not in catalog.SIZES:
        raise invalid(
            f"The value {wanted} provided for the VM size is not valid. The valid sizes in the current region are: "
            f"{', '.join(size.name for size in catalog.sizes_in(region))}."
        )
    size = catalog.size_in(wanted, region)
    if size is None or size.closed or size.retired or f"{region}/{wanted}".lower() in cloud.restrictions:
        raise sku_not_available(wanted, region)
    given = ask.body["properties"]
    spot = str(given.get("priority", "")).lower() == "spot"
    _check_zones(ask, size, region)
    rules.check(cloud, ask, size, region)
    _check_spot(cloud, ask, given, size, region)
    prices.check_quota(cloud, region, size, spot)
    return size


def _check_zones(ask: Ask, size: catalog.TwinSize, region: str) -> None:
    for zone in ask.body.get("zones") or ():
        if zone not in catalog.REGIONS[region].zones:
            raise invalid(
                f"The zone(s) '{zone}' for resource '{ask.target.kind}/{ask.target.name}' is not supported in location "
                f"'{region}'.",
                "InvalidAvailabilityZone",
            )
        if zone in catalog.withheld_zones(size, region):
            raise sku_not_available(size.name, region)


def _check_spot(cloud: CloudState, ask: Ask, given: Mapping[str, Any], size: catalog.TwinSize, region: str) -> None:
    if str(given.get("priority", "")).lower() != "spot":
        if given.get("evictionPolicy"):
            raise conflict(
                "Eviction policy can be set only on Azure Spot Virtual Machines.",
                "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines",
            )
        if (given.get("billingProfile") or {}).get("maxPrice") is not None:
            raise conflict(
                "Max price is supported only for Azure Spot VMs.", "MaxPriceIsSupportedOnlyForAzureSpotVirtualMachines"
            )
        return
    if ask.version < _SPOT_SINCE:
        message = f"Azure Spot is not supported for this API version. Please use {_SPOT_SINCE} or later."
        raise conflict(message, "AzureSpotIsNotSupportedForThisAPIVersion")
    check_price(cloud, given, size, region, ask.now, "Create VM")


def check_price(
    cloud: CloudState, given: Mapping[str, Any], size: catalog.TwinSize, region: str, now: float, operation: str
) -> None:
    most = float((given.get("billingProfile") or {}).get("maxPrice", -1))
    price = prices.spot_usd(cloud, size, region, now)
    if most != -1 and most < price:
        raise conflict(
            f"Unable to perform operation '{operation}' since the provided max price '{most} USD' is lower than the "
            f"current spot price '{price} USD' for Azure Spot VM size '{size.name}'.",
            "SpotPriceGreaterThanProvidedMaxPrice",
        )


def allocation_error(
    cloud: CloudState, ask: Ask, size: catalog.TwinSize, region: str
) -> tuple[CloudState, Mapping[str, Any]]:
    """A failed allocation: ordered by a test, or caused by the weather."""
    fault, left = weather.take(cloud.faults, ("allocation",), ask.method, ask.path)
    if fault is None and not cloud.weather.allocation_fails(ask.number):
        return cloud, {}
    near = parts.named(ask.body.get("properties") or {})
    error = overconstrained(size.name, near) if near else allocation_failed(size.name, region)
    return replace(cloud, faults=left), error.body()


_POWER_S = 0.5
_SIMULATED_NOTICE_S = 30.0


@route("POST", VMS, "start")
def start(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    vm, instance = _both(cloud, ask)
    if instance.power in (MachinePower.RUNNING, MachinePower.STARTING):
        cloud, operation = begin(cloud, ask, "run", 0.0, vm.id)
        return cloud, accepted(ask, operation)
    error: Mapping[str, Any] = {}
    if instance.power is MachinePower.DEALLOCATED:  # capacity must be allocated again, perhaps elsewhere
        if instance.spot:
            check_price(cloud, vm.properties, prices.size_of(vm), vm.region, ask.now, "Start VM")
        cloud, error = allocation_error(cloud, ask, prices.size_of(vm), vm.region)
    cloud, operation = begin(cloud, ask, "vm.start", _POWER_S, vm.id, error=error)
    if not error:
        cloud = power.begin(cloud, operation, power.chore(cloud, "start", instance, ask.now))
        cloud = power.tell(cloud, vm.id, ask.wall)
    return power.set_power(cloud, vm.id, MachinePower.STARTING, ask.now), accepted(ask, operation)


@route("POST", VMS, "deallocate")
def deallocate(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    vm, instance = _both(cloud, ask)
    cloud, operation = begin(cloud, ask, "vm.deallocate", _POWER_S, vm.id)
    if instance.power is MachinePower.DEALLOCATED:
        return cloud, accepted(ask, operation)
    return power.halt(cloud, vm.id, operation, ask.now), accepted(ask, operation)


@route("POST", VMS, "powerOff")
def power_off(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Stopped, and still billed."""
    vm, instance = _running(cloud, ask)
    cloud, operation = begin(cloud, ask, "vm.power_off", _POWER_S, vm.id)
    cloud = power.begin(cloud, operation, power.chore(cloud, "power_off", instance, ask.now))
    return power.set_power(cloud, vm.id, MachinePower.STOPPING, ask.now), accepted(ask, operation)


@route("POST", VMS, "restart")
@route("POST", VMS, "redeploy")
@route("POST", VMS, "reapply")
def restart(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    vm, instance = _running(cloud, ask)
    cloud, operation = begin(cloud, ask, "vm.restart", _POWER_S, vm.id)
    if ask.target.tail.lower() == "reapply":
        return cloud, accepted(ask, operation)
    cloud = power.begin(cloud, operation, power.chore(cloud, "power_off", instance, ask.now))
    cloud = power.begin(cloud, cloud.operations[operation.id], power.chore(cloud, "start", instance, ask.now))
    return cloud.put_instance(replace(instance, boots=instance.boots + 1)), accepted(ask, operation)


@route("POST", VMS, "simulateEviction")
def simulate_eviction(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Azure evicts within half an hour of this; the twin sends its notice at once."""
    vm, instance = _both(cloud, ask)
    if not instance.spot:
        raise conflict("SimulateEviction is only supported on Azure Spot Virtual Machines.", "OperationNotAllowed")
    if instance.power is not MachinePower.RUNNING:
        raise conflict(f"Cannot evict VM '{vm.name}': it is not running.", "OperationNotAllowed")
    cloud = power.preempt(cloud, vm, ask.now, ask.wall, notice_s=_SIMULATED_NOTICE_S, withdrawn=False)
    return cloud, ArmAnswer(204)


@route("POST", VMS, "runCommand")
def run_command(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    vm, instance = _running(cloud, ask)
    if str(ask.body.get("commandId", "")).lower() != "runshellscript":
        raise invalid(f"The entity commandId '{ask.body.get('commandId')}' was not found.", "NotFound")
    named = [one for one in objects(ask.body, "parameters") if one.get("name")]
    settings = [f"export {one['name']}={_quoted(str(one.get('value', '')))}" for one in named]
    lines = ask.body.get("script") or []
    if not isinstance(lines, list):
        raise unreadable("'script' must be a list of lines. Path 'script'.")
    script = "\n".join([*settings, *(str(line) for line in lines)])
    cloud, operation = begin(cloud, ask, "run", 0.0, vm.id)
    order = power.chore(cloud, "run", instance, ask.now, script=script, form="run-command")
    return power.begin(cloud, operation, order), accepted(ask, operation)


def _both(cloud: CloudState, ask: Ask) -> tuple[Resource, Instance]:
    vm = resources.require(cloud, ask)
    parts.refuse_deleting(vm, ask.target.tail)
    instance = cloud.instance(vm.id)
    if instance is None:
        raise conflict(f"VM '{vm.name}' could not be provisioned, and cannot do this.", "OperationNotAllowed")
    return vm, instance


def _running(cloud: CloudState, ask: Ask) -> tuple[Resource, Instance]:
    vm, instance = _both(cloud, ask)
    if instance.power not in (MachinePower.RUNNING, MachinePower.STARTING):
        raise not_running()
    return vm, instance


def not_running() -> Refused:
    return conflict("The operation requires the VM to be running (or set to run).", "OperationNotAllowed")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# The instance view: the state of the machine behind a VM.

_TITLES = {
    MachinePower.STARTING: "VM starting",
    MachinePower.RUNNING: "VM running",
    MachinePower.STOPPING: "VM stopping",
    MachinePower.STOPPED: "VM stopped",
    MachinePower.DEALLOCATING: "VM deallocating",
    MachinePower.DEALLOCATED: "VM deallocated",
}


@route("GET", VMS, "instanceView")
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, view(cloud, ask, resources.require(cloud, ask)))


def with_view(cloud: CloudState, ask: Ask, vm: Resource) -> dict[str, Any]:
    return vm.having(instanceView=view(cloud, ask, vm)).answer()


def status_only(cloud: CloudState, ask: Ask, vm: Resource) -> dict[str, Any]:
    """Its state, and almost nothing else: no tags, priority or disks."""
    kept = {"id": vm.id, "name": vm.name, "type": vm.kind, "location": vm.region}
    told = {"vmId": vm.properties["vmId"], "provisioningState": vm.properties["provisioningState"]}
    return {**kept, "properties": {**told, "instanceView": view(cloud, ask, vm)}}


def view(cloud: CloudState, ask: Ask, vm: Resource) -> dict[str, Any]:
    instance = cloud.instance(vm.id)
    state = str(vm.properties["provisioningState"]).lower()
    statuses = [_status(f"ProvisioningState/{state}", f"Provisioning {state}", ask.stamp(vm.created_at))]
    if instance:
        statuses.append(_status(f"PowerState/{instance.power}", _TITLES[instance.power]))
    told: dict[str, Any] = {"statuses": statuses, "disks": [], "hyperVGeneration": _generation(vm)}
    if instance and instance.power is MachinePower.RUNNING:
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
    image = catalog.named(vm.properties["storageProfile"].get("imageReference") or {})
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

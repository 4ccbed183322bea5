"""The core quota of a subscription: limits, usage, and the refusal in Azure's words."""

from __future__ import annotations

from typing import Any

from stoker.twin.market import catalog
from stoker.twin.market.catalog import TwinSize
from stoker.twin.refusal import conflict
from stoker.twin.state import CloudState, Resource

TOTAL = "cores"
SPOT = "lowPriorityCores"
MACHINES = "virtualMachines"
VMS = "Microsoft.Compute/virtualMachines"


def limit(cloud: CloudState, region: str, name: str) -> int:
    ordered = cloud.quotas.get(f"{region}/{name}".lower())
    if ordered is not None:
        return ordered
    if name in (TOTAL, SPOT, MACHINES):
        return {TOTAL: catalog.CORES_PER_REGION, SPOT: catalog.SPOT_CORES, MACHINES: 25_000}[name]
    gpu = any(size.gpus for size in catalog.SIZES.values() if size.family == name)
    return catalog.CORES_PER_GPU_FAMILY if gpu else catalog.CORES_PER_FAMILY


def used(cloud: CloudState, region: str, name: str) -> int:
    """Deallocated VMs count as well, as in Azure."""
    vms = [vm for vm in cloud.all(VMS) if vm.region == region and not _failed(vm)]
    if name == MACHINES:
        return len(vms)
    return sum(size_of(vm).cpus for vm in vms if name in counters(size_of(vm), is_spot(vm)))


def check(cloud: CloudState, region: str, size: TwinSize, spot: bool) -> None:
    """Refused where this many more cores would exceed a limit."""
    for name in counters(size, spot):
        allowed, taken = limit(cloud, region, name), used(cloud, region, name)
        if taken + size.cpus <= allowed:
            continue
        title = {TOTAL: "Total Regional Cores", SPOT: "LowPriorityCores"}.get(name, f"{name} Cores")
        raise conflict(
            f"Operation could not be completed as it results in exceeding approved {title} quota. Additional details "
            f"- Deployment Model: Resource Manager, Location: {region}, Current Limit: {allowed}, "
            f"Current Usage: {taken}, Additional Required: {size.cpus}, (Minimum) New Limit Required: "
            f"{taken + size.cpus}. Submit a request for Quota increase at https://aka.ms/ProdportalCRP by specifying "
            "parameters listed in the 'Details' section for deployment to succeed. Please read more about quota limits "
            "at https://docs.microsoft.com/azure/azure-supportability/per-vm-quota-requests",
            "OperationNotAllowed",
        )


def usages(cloud: CloudState, region: str) -> list[dict[str, Any]]:
    families = sorted({size.family for size in catalog.sizes_in(region)})
    titles = {TOTAL: "Total Regional vCPUs", SPOT: "Total Regional Low-priority vCPUs", MACHINES: "Virtual Machines"}
    return [
        {
            "unit": "Count",
            "currentValue": used(cloud, region, name),
            "limit": limit(cloud, region, name),
            "name": {"value": name, "localizedValue": titles.get(name, f"{name} vCPUs")},
        }
        for name in (TOTAL, MACHINES, SPOT, *families)
    ]


def counters(size: TwinSize, spot: bool) -> tuple[str, ...]:
    """Spot VMs count towards a limit of their own."""
    return (SPOT,) if spot else (TOTAL, size.family)


def size_of(vm: Resource) -> TwinSize:
    return catalog.SIZES[str(vm.properties["hardwareProfile"]["vmSize"]).lower()]


def is_spot(vm: Resource) -> bool:
    return str(vm.properties.get("priority", "")).lower() in ("spot", "low")


def _failed(vm: Resource) -> bool:
    """A VM that was never allocated uses nothing."""
    return vm.properties.get("provisioningState") == "Failed" and "timeCreated" not in vm.properties

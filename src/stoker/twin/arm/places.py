"""Subscriptions, regions, providers, sizes, quotas and images: what can be asked for before anything is made."""

from __future__ import annotations

from typing import Any

from stoker.twin import catalog, ids, odata, quota
from stoker.twin.arm.ask import ROUTES, Answer, Ask, page, route
from stoker.twin.refusal import Refused, invalid
from stoker.twin.state import Cloud

_IMAGES = "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus"
_VERSIONS = f"{_IMAGES}/versions"
IMAGE_VERSION = "24.04.202611010"
IMAGE_ALIASES = {
    "Ubuntu2204": ("Canonical", "0001-com-ubuntu-server-jammy", "22_04-lts-gen2"),
    "Ubuntu2404": ("Canonical", "ubuntu-24_04-lts", "server"),
    "Debian12": ("Debian", "debian-12", "12-gen2"),
}


@route("GET", "", "tenants")
def tenants(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    tenant = {"id": f"/tenants/{cloud.tenant}", "tenantId": cloud.tenant, "displayName": "Twin", "countryCode": "SE"}
    return cloud, page(ask, [tenant])


@route("GET", "", "subscriptions")
def subscriptions(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return cloud, page(ask, [_subscription(cloud)])


@route("GET", ids.SUBSCRIPTIONS)
def subscription(cloud: Cloud, _: Ask) -> tuple[Cloud, Answer]:
    return cloud, Answer(200, _subscription(cloud))


def _subscription(cloud: Cloud) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{cloud.subscription}",
        "subscriptionId": cloud.subscription,
        "tenantId": cloud.tenant,
        "displayName": "Twin",
        "state": "Enabled",
        "subscriptionPolicies": {"spendingLimit": "Off", "quotaId": "PayAsYouGo_2014-09-01"},
    }


@route("GET", ids.SUBSCRIPTIONS, "locations")
def locations(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    found = [
        {
            "id": f"/subscriptions/{cloud.subscription}/locations/{region.name}",
            "name": region.name,
            "displayName": region.title,
            "regionalDisplayName": region.title,
            "metadata": {"regionType": "Physical"},
        }
        for region in catalog.REGIONS.values()
    ]
    return cloud, page(ask, found)


@route("GET", ids.SUBSCRIPTIONS, "providers")
def providers(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    namespaces = sorted({kind.split("/")[0] for _, kind, _ in ROUTES if "/" in kind})
    return cloud, page(ask, [_provider(cloud, namespace) for namespace in namespaces])


def provider(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return cloud, Answer(200, _provider(cloud, ask.target.kind))


def _provider(cloud: Cloud, namespace: str) -> dict[str, Any]:
    """All the kinds that the twin answers for. Versions are not kept apart: the newest way is the only one."""
    kinds = {
        kind.partition("/")[2] for method, kind, tail in ROUTES if kind.split("/")[0] == namespace.lower() and not tail
    }
    places = [region.title for region in catalog.REGIONS.values()]
    types = [
        {"resourceType": ids.spelt(kind), "locations": places, "apiVersions": ["2024-11-01", "2024-07-01"]}
        for kind in sorted(kinds - {""})
    ]
    spelt = ids.spelt(namespace)
    id = f"/subscriptions/{cloud.subscription}/providers/{spelt}"
    return {"id": id, "namespace": spelt, "registrationState": "Registered", "resourceTypes": types}


for _namespace in ("Compute", "Network", "Resources", "ManagedIdentity", "Authorization", "Storage"):
    route("GET", f"Microsoft.{_namespace}")(provider)
    route("POST", f"Microsoft.{_namespace}", "register")(provider)


@route("GET", "Microsoft.Compute", "skus")
def skus(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    """All sizes of all regions, or of the one in the filter."""
    text = ask.query.get("$filter", "")
    test = odata.parse(text) if text else lambda _: True
    found = [
        catalog.sku(size, region, f"{region}/{size.name}".lower() in cloud.restrictions)
        for region in catalog.REGIONS
        if test({"location": region})
        for size in catalog.sizes_in(region)
    ]
    return cloud, Answer(200, {"value": found})


@route("GET", "Microsoft.Compute/locations", "vmSizes")
def sizes(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    found = [
        {
            "name": size.name,
            "numberOfCores": size.cpus,
            "memoryInMB": int(size.memory_gb * 1024),
            "osDiskSizeInMB": 1_047_552,
            "resourceDiskSizeInMB": 0,
            "maxDataDiskCount": 8,
        }
        for size in catalog.sizes_in(_region(ask))
    ]
    return cloud, Answer(200, {"value": found})


@route("GET", "Microsoft.Compute/locations", "usages")
def usages(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    return cloud, Answer(200, {"value": quota.usages(cloud, _region(ask))})


def _region(ask: Ask) -> str:
    region = catalog.region_named(ask.target.name)
    if region is None:
        raise invalid(f"The provided location '{ask.target.name}' is not available.", "NoRegisteredProviderFound")
    return region.name


@route("GET", _IMAGES, "versions")
def image_versions(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    """Every publisher has every image: the machine's disk is this computer's own system anyway."""
    return cloud, Answer(200, [_image(ask, f"{ask.id}/versions/{IMAGE_VERSION}", IMAGE_VERSION)])


@route("GET", _VERSIONS)
def image_version(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    if ask.target.name.lower() == "latest":
        raise Refused(404, "ImageNotFound", "The platform image version 'latest' was not found.")
    image = _image(ask, ask.id, ask.target.name)
    properties = {
        "osDiskImage": {"operatingSystem": "Linux", "sizeInGb": catalog.DEFAULT_DISK_GB},
        "dataDiskImages": [],
        "hyperVGeneration": "V2",
        "architecture": "x64",
        "automaticOSUpgradeProperties": {"automaticOSUpgradeSupported": False},
        "features": [],
    }
    return cloud, Answer(200, {**image, "properties": properties})


def _image(ask: Ask, id: str, version: str) -> dict[str, Any]:
    return {"id": id, "name": version, "location": ask.target.names[0]}

"""Subscriptions, regions, providers, sizes, quotas and images: what can be asked for before anything is made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm.requests.ask import ROUTES, Answer, Ask, page, route
from stoker.twin.arm.requests.versions import versions_of
from stoker.twin.market import catalog, images, quota
from stoker.twin.market.skus import disk_sku, host_sku, sku
from stoker.twin.refusal import Refused, conflict, invalid
from stoker.twin.state import Cloud
from stoker.twin.web import odata

_IMAGES = "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus"
_VERSIONS = f"{_IMAGES}/versions"


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
        "state": cloud.standing,
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
    """All the kinds that the twin answers for. Versions have their names, and all of them the newest behaviour."""
    kinds = {
        kind.partition("/")[2] for method, kind, tail in ROUTES if kind.split("/")[0] == namespace.lower() and not tail
    }
    places = [region.title for region in catalog.REGIONS.values()]
    types = [
        {
            "resourceType": "/".join(ids.spelt(word) for word in kind.split("/")),
            "locations": places,
            "apiVersions": list(reversed(versions_of(f"{namespace}/{kind}"))),
        }
        for kind in sorted(kinds - {""})
    ]
    spelt = ids.spelt(namespace)
    id = f"/subscriptions/{cloud.subscription}/providers/{spelt}"
    state = registration(cloud, namespace)
    return {"id": id, "namespace": spelt, "registrationState": state, "resourceTypes": types}


def register(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    """Azure takes a minute or two, and says `Registering` meanwhile."""
    answer = {**_provider(cloud, ask.target.kind), "registrationState": "Registering"}
    return registered(cloud, ask.target.kind), Answer(200, answer)


def unregister(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    cloud = unregistered(cloud, ask.target.kind)
    return cloud, Answer(200, _provider(cloud, ask.target.kind))


for _namespace in ("Compute", "Network", "Resources", "ManagedIdentity", "Authorization", "Storage"):
    route("GET", f"Microsoft.{_namespace}")(provider)
    route("POST", f"Microsoft.{_namespace}", "register")(register)
    route("POST", f"Microsoft.{_namespace}", "unregister")(unregister)


@route("GET", "Microsoft.Compute", "skus")
def skus(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    """Everything of all regions, or of the one in the filter: machines, and what is beside them in the list."""
    text = ask.query.get("$filter", "")
    test = odata.parse(text) if text else lambda _: True
    found = []
    for region in filter(lambda name: test({"location": name}), catalog.REGIONS):
        found += [disk_sku("Premium_LRS", "Premium", "P10", region), host_sku(region)]
        for size in catalog.sizes_in(region):
            found.append(sku(size, region, restricted=f"{region}/{size.name}".lower() in cloud.restrictions))
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
    _known(ask, images.VERSION)
    return cloud, Answer(200, [_image(ask, f"{ask.id}/versions/{images.VERSION}", images.VERSION)])


@route("GET", _VERSIONS)
def image_version(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    image = _known(ask, "" if ask.target.name.lower() == "latest" else ask.target.name)
    properties = {
        "osDiskImage": {"operatingSystem": "Linux", "sizeInGb": image.disk_gb},
        "dataDiskImages": [],
        "hyperVGeneration": image.generation,
        "architecture": image.architecture,
        "automaticOSUpgradeProperties": {"automaticOSUpgradeSupported": False},
        "features": [],
    }
    return cloud, Answer(200, {**_image(ask, ask.id, ask.target.name), "properties": properties})


def _known(ask: Ask, version: str) -> images.Image:
    _, publisher, _, offer, sku, *_ = ask.target.names
    image = images.named({"publisher": publisher, "offer": offer, "sku": sku, "version": version})
    if image is None:
        raise Refused(
            404, "NotFound", f"Artifact: VMImage was not found: {publisher}:{offer}:{sku}:{version or 'latest'}."
        )
    return image


def _image(ask: Ask, id: str, version: str) -> dict[str, Any]:
    return {"id": id, "name": version, "location": ask.target.names[0]}


# How the subscription stands: whether it may be written to, and for which of Azure's services it is registered.

STATES = ("Enabled", "Warned", "PastDue", "Disabled", "Deleted")
_READ_ONLY = ("disabled", "deleted")
_ALWAYS = ("microsoft.resources", "microsoft.authorization", "microsoft.consumption")  # every subscription has these


def check(cloud: Cloud, ask: Ask) -> None:
    """Refused where the subscription is read-only, or has never registered for the service."""
    if ask.method not in ("PUT", "PATCH", "POST", "DELETE") or not ask.target.subscription:
        return
    if cloud.standing.lower() in _READ_ONLY and ask.method != "DELETE" and not _reads(ask):
        raise conflict(
            f"The subscription '{ask.target.subscription}' is disabled and therefore marked as read only. You cannot "
            "perform any write actions on this subscription until it is re-enabled.",
            "ReadOnlyDisabledSubscription",
        )
    namespace = ask.target.kind.split("/")[0].lower()
    if ask.method == "PUT" and namespace in cloud.unregistered:
        raise _not_registered(ask.target.kind.split("/")[0])


def registration(cloud: Cloud, namespace: str) -> str:
    return "NotRegistered" if namespace.lower() in cloud.unregistered else "Registered"


def registered(cloud: Cloud, namespace: str) -> Cloud:
    return replace(cloud, unregistered=tuple(one for one in cloud.unregistered if one != namespace.lower()))


def unregistered(cloud: Cloud, namespace: str) -> Cloud:
    known = namespace.lower()
    if known in _ALWAYS:
        raise conflict(f"The namespace '{ids.spelt(namespace)}' cannot be unregistered.", "CannotUnregisterRP")
    return replace(cloud, unregistered=(*(one for one in cloud.unregistered if one != known), known))


def _reads(ask: Ask) -> bool:
    return ask.method == "POST" and ask.target.tail.lower() in ("validate", "whatif", "exporttemplate", "listkeys")


def _not_registered(namespace: str) -> Refused:
    return conflict(
        f"The subscription is not registered to use namespace '{namespace}'. See https://aka.ms/rps-not-found for how "
        "to register subscriptions.",
        "MissingSubscriptionRegistration",
    )

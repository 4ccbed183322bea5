"""Subscriptions, regions, providers, sizes, quotas and images: what a client reads before it creates anything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.arm.ask import ROUTES, ArmAnswer, Ask, page, route
from stoker.twin.arm.bodies import versions_of
from stoker.twin.market import catalog, prices
from stoker.twin.market.catalog import disk_sku, host_sku, sku
from stoker.twin.refusal import Refused, conflict, invalid
from stoker.twin.state import CloudState
from stoker.twin.web import odata

_IMAGES = "Microsoft.Compute/locations/publishers/artifacttypes/offers/skus"
_VERSIONS = f"{_IMAGES}/versions"


@route("GET", "", "tenants")
def tenants(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    tenant = {"id": f"/tenants/{cloud.tenant}", "tenantId": cloud.tenant, "displayName": "Twin", "countryCode": "SE"}
    return cloud, page(ask, [tenant])


@route("GET", "", "subscriptions")
def subscriptions(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, page(ask, [_subscription(cloud)])


@route("GET", ids.SUBSCRIPTIONS)
def subscription(cloud: CloudState, _: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, _subscription(cloud))


def _subscription(cloud: CloudState) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{cloud.subscription}",
        "subscriptionId": cloud.subscription,
        "tenantId": cloud.tenant,
        "displayName": "Twin",
        "state": cloud.standing,
        "subscriptionPolicies": {"spendingLimit": "Off", "quotaId": "PayAsYouGo_2014-09-01"},
    }


@route("GET", ids.SUBSCRIPTIONS, "locations")
def locations(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
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
def providers(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    namespaces = sorted({kind.split("/")[0] for _, kind, _ in ROUTES if "/" in kind})
    return cloud, page(ask, [_provider(cloud, namespace) for namespace in namespaces])


def provider(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, _provider(cloud, ask.target.kind))


def _provider(cloud: CloudState, namespace: str) -> dict[str, Any]:
    """All kinds that the twin supports. All version names exist, with the behaviour of the newest."""
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


def register(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Azure takes a minute or two, and reports `Registering` meanwhile."""
    answer = {**_provider(cloud, ask.target.kind), "registrationState": "Registering"}
    return registered(cloud, ask.target.kind), ArmAnswer(200, answer)


def unregister(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    cloud = unregistered(cloud, ask.target.kind)
    return cloud, ArmAnswer(200, _provider(cloud, ask.target.kind))


for _namespace in (
    *("Compute", "Network", "Resources", "ManagedIdentity", "Authorization", "Storage"),
    "MachineLearningServices",
):
    route("GET", f"Microsoft.{_namespace}")(provider)
    route("POST", f"Microsoft.{_namespace}", "register")(register)
    route("POST", f"Microsoft.{_namespace}", "unregister")(unregister)


@route("GET", "Microsoft.Compute", "skus")
def skus(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Everything of all regions, or of the one in the filter: VMs, and what else the list contains."""
    text = ask.query.get("$filter", "")
    test = odata.parse(text) if text else lambda _: True
    found = []
    for region in filter(lambda name: test({"location": name}), catalog.REGIONS):
        found += [disk_sku("Premium_LRS", "Premium", "P10", region), host_sku(region)]
        for size in catalog.sizes_in(region):
            found.append(sku(size, region, restricted=f"{region}/{size.name}".lower() in cloud.restrictions))
    return cloud, ArmAnswer(200, {"value": found})


@route("GET", "Microsoft.Compute/locations", "vmSizes")
def sizes(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
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
    return cloud, ArmAnswer(200, {"value": found})


@route("GET", "Microsoft.Compute/locations", "usages")
def usages(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, {"value": prices.quota_usages(cloud, _region(ask))})


@route("GET", "Microsoft.Network/locations", "usages")
def network_usages(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    scope = ask.id.removesuffix("/usages")
    return cloud, ArmAnswer(200, {"value": prices.address_usages(cloud, _region(ask), scope)})


def _region(ask: Ask) -> str:
    region = catalog.region_named(ask.target.name)
    if region is None:
        raise invalid(f"The provided location '{ask.target.name}' is not available.", "NoRegisteredProviderFound")
    return region.name


@route("GET", _IMAGES, "versions")
def image_versions(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    _known(ask, catalog.VERSION)
    return cloud, ArmAnswer(200, [_image(ask, f"{ask.id}/versions/{catalog.VERSION}", catalog.VERSION)])


@route("GET", _VERSIONS)
def image_version(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    image = _known(ask, "" if ask.target.name.lower() == "latest" else ask.target.name)
    properties = {
        "osDiskImage": {"operatingSystem": "Linux", "sizeInGb": image.disk_gb},
        "dataDiskImages": [],
        "hyperVGeneration": image.generation,
        "architecture": image.architecture,
        "automaticOSUpgradeProperties": {"automaticOSUpgradeSupported": False},
        "features": [],
    }
    return cloud, ArmAnswer(200, {**_image(ask, ask.id, ask.target.name), "properties": properties})


def _known(ask: Ask, version: str) -> catalog.Image:
    _, publisher, _, offer, sku, *_ = ask.target.names
    image = catalog.named({"publisher": publisher, "offer": offer, "sku": sku, "version": version})
    if image is None:
        raise Refused(
            404, "NotFound", f"Artifact: VMImage was not found: {publisher}:{offer}:{sku}:{version or 'latest'}."
        )
    return image


def _image(ask: Ask, id: str, version: str) -> dict[str, Any]:
    return {"id": id, "name": version, "location": ask.target.names[0]}


# The state of the subscription: whether it is writable, and for which services it is registered.

STATES = ("Enabled", "Warned", "PastDue", "Disabled", "Deleted")
_READ_ONLY = ("disabled", "deleted")
_ALWAYS = ("microsoft.resources", "microsoft.authorization", "microsoft.consumption")  # every subscription has these


def check(cloud: CloudState, ask: Ask) -> None:
    """Refused where the subscription is read-only, or not registered for the service."""
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


def registration(cloud: CloudState, namespace: str) -> str:
    return "NotRegistered" if namespace.lower() in cloud.unregistered else "Registered"


def registered(cloud: CloudState, namespace: str) -> CloudState:
    return replace(cloud, unregistered=tuple(one for one in cloud.unregistered if one != namespace.lower()))


def unregistered(cloud: CloudState, namespace: str) -> CloudState:
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

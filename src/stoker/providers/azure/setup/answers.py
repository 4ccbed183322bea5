"""The requests of a preflight, and what their answers mean: quotas, providers, and the rights that a login lacks."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from stoker.errors import LoginFailed, NotFound
from stoker.model.node import Offer
from stoker.model.workspace.store import CheckResult, Finding
from stoker.providers.azure.account.clients import POLL_S, REPEATABLE, missing_error, speaking
from stoker.providers.azure.account.grounds import ground
from stoker.providers.azure.market.sizes import CORES, SPOT_CORES, AzureSize
from stoker.providers.azure.naming import SETS, NodePlace
from stoker.providers.azure.setup.cloud import SetupCloud
from stoker.providers.azure.template import COMPUTE

Json = dict[str, Any]


class Questions(SetupCloud):
    """None of these requests is billed."""

    def claims(self) -> Json:
        """The claims of the current login's token."""
        with speaking("logging in"):
            token = self._credential.get_token(f"{self._account.arm.rstrip('/')}/.default").token
        try:
            body = token.split(".")[1]
            found: Json = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (IndexError, ValueError) as error:
            raise LoginFailed("logging in: the token is unreadable", hint="az login") from error
        return found

    def clock_ahead(self) -> timedelta:
        """How far Azure's clock is ahead of this computer's, by the Date header of a response."""
        self.groups()
        return self._ahead

    def counts(self) -> tuple[int, int]:
        """How many resource groups and role assignments the subscription has in all."""
        with speaking("counting groups and role assignments"):
            groups = sum(1 for _ in self._resources.resource_groups.list())
            return groups, sum(1 for _ in self._authorization.role_assignments.list_for_subscription())

    def registration(self, namespace: str) -> str:
        with speaking(f"checking the service {namespace}"):
            found = self._resources.providers.get(namespace).registration_state
        return str(getattr(found, "value", found) or "NotRegistered")

    def image_there(self, region: str, image: str) -> bool:
        """`publisher:offer:sku:version`, or a resource id."""
        if image.startswith("/"):
            return self.get(image, "2024-03-03" if "/galleries/" in image else "2024-07-01") is not None
        publisher, offer, sku, version = image.split(":")
        with speaking(f"looking for the image {image} in {region}"):
            try:
                if version != "latest":
                    self._compute.virtual_machine_images.get(region, publisher, offer, sku, version)
                    return True
                return bool(list(self._compute.virtual_machine_images.list(region, publisher, offer, sku, top=1)))
            except missing_error():
                return False

    def permissions(self, group: str) -> list[Permission]:
        """What this login may do in a group, from all of its roles."""
        with speaking(f"checking the rights in {group}"):
            found = list(self._authorization.permissions.list_for_resource_group(group))
        return [Permission(tuple(one.actions or ()), tuple(one.not_actions or ())) for one in found]

    def evict(self, key: str) -> str:
        """Asks Azure to evict the VM of a node; it does so within half an hour. Returns what will restore it."""
        found = ground(self, self._account).found()
        vm = next((one.vm for one in found if one.marks.key == key and one.vm and not one.vm.deleting), None)
        if vm is None:
            raise NotFound(f"node {key} has no VM in Azure", hint="stoker ps")
        with speaking(f"evicting the VM of {key}"):
            self._compute.virtual_machines.simulate_eviction(vm.group, vm.name)
        return self._restoring(vm.group)

    def _restoring(self, group: str) -> str:
        for part in self.parts(group):
            if part.kind.lower() == SETS.lower():
                given = (self.get(part.id, COMPUTE) or {}).get("properties", {})
                policy = given.get("spotRestorePolicy") or {}
                if policy.get("enabled"):
                    lasts = str(policy.get("restoreTimeout", "an unknown time"))
                    minutes = re.fullmatch(r"PT(\d+)M", lasts)
                    return (
                        f"accepted by Azure: it tries to restore the VM for {f'{minutes[1]} min' if minutes else lasts}"
                    )
        return ""

    def validate(self, place: NodePlace, properties: Mapping[str, Any], custom_data: str) -> None:
        """Raises the error that a run would get. Azure runs all checks of a deployment, including policies and quotas,
        and creates nothing."""
        body = {"properties": {**properties, "parameters": {"customData": {"value": custom_data}}}}
        with speaking(f"validating a VM in {place.group}"):
            self._deployments.deployments.begin_validate(
                place.group, place.deployment, body, polling_interval=POLL_S, retry_on_methods=REPEATABLE
            ).result()


# Of public addresses: those of one kind, those that stay the same, and all together.
ADDRESSES = (
    "IPv4StandardSkuPublicIpAddresses",
    "StandardSkuPublicIpAddresses",
    "StaticPublicIPAddresses",
    "PublicIPAddresses",
)
_SKEW_WARN_S, _SKEW_FAIL_S = 60.0, 300.0  # the validity of tokens goes by Azure's clock
MOST_GROUPS, MOST_ASSIGNMENTS = 980, 4000  # Azure's limits per subscription
_NEARLY = 0.9
_WORKS = ("enabled", "warned", "pastdue")


def login(claims: Mapping[str, Any]) -> Finding:
    who = claims.get("upn") or claims.get("unique_name") or claims.get("appid") or "somebody"
    kind = "" if claims.get("upn") or claims.get("unique_name") else "the service principal "
    found = f"{kind}{who}, object id {claims.get('oid', 'unknown')}, tenant {claims.get('tid', 'unknown')}"
    return Finding("login", CheckResult.OK, found)


def clock(ahead: timedelta) -> Finding:
    off = abs(ahead.total_seconds())
    if off < 2:
        return Finding("clock", CheckResult.OK, "this computer's clock agrees with Azure's")
    text = f"this computer's clock is {off:.0f} s {'behind' if ahead > timedelta() else 'ahead of'} Azure's"
    if off < _SKEW_WARN_S:
        return Finding("clock", CheckResult.OK, text)
    verdict = CheckResult.FAIL if off > _SKEW_FAIL_S else CheckResult.WARN
    return Finding("clock", verdict, text, "set the clock by the network: sudo timedatectl set-ntp true")


def subscription(found: Mapping[str, Any]) -> Finding:
    state = str(found.get("state") or found.get("properties", {}).get("state") or "unknown")
    title = str(found.get("displayName") or found.get("properties", {}).get("displayName") or "")
    text = f"{title or 'it'} is {state}".strip()
    if state.lower() == "enabled":
        return Finding("subscription", CheckResult.OK, text)
    advice = "check its billing: az account show; or name another one in azure.json: az account list --output table"
    if state.lower() in _WORKS:
        return Finding("subscription", CheckResult.WARN, f"{text}: a bill is unpaid, and Azure will disable it", advice)
    return Finding("subscription", CheckResult.FAIL, f"{text}: nothing can be created in it", advice)


def services(states: Mapping[str, str], *, made: bool = False) -> Finding:
    """`made`: the caller registers what is missing."""
    missing = [name for name, state in states.items() if state.lower() not in ("registered", "registering")]
    waiting = [name for name, state in states.items() if state.lower() == "registering"]
    if missing:
        commands = " && ".join(f"az provider register --namespace {name} --wait" for name in missing)
        verdict = CheckResult.WARN if made else CheckResult.FAIL
        advice = "the set-up registers them" if made else commands
        return Finding("services", verdict, f"not registered: {', '.join(missing)}", advice)
    if waiting:
        advice = f"az provider show --namespace {waiting[0]} --query registrationState"
        return Finding("services", CheckResult.WARN, f"being registered: {', '.join(waiting)}", advice)
    return Finding("services", CheckResult.OK, f"registered: {', '.join(name.split('.')[1] for name in states)}")


def limits(groups: int, assignments: int) -> Finding:
    """A node needs at least one role assignment, and a resource group where it has its own."""
    found = f"{groups} of {MOST_GROUPS} resource groups, {assignments:,} of {MOST_ASSIGNMENTS:,} role assignments"
    used = max(groups / MOST_GROUPS, assignments / MOST_ASSIGNMENTS)
    advice = "remove unused ones: stoker cleanup; az group list --output table; az role assignment list --all"
    if used >= 1:
        return Finding("limits", CheckResult.FAIL, found, advice)
    return (
        Finding("limits", CheckResult.WARN, found, advice)
        if used >= _NEARLY
        else Finding("limits", CheckResult.OK, found)
    )


def size(region: str, offer: Offer | None) -> Finding:
    name = f"size {region}"
    if offer is None:
        advice = "request less, or name other regions: stoker plan shows what fits"
        return Finding(name, CheckResult.FAIL, "no matching size is available to this subscription", advice)
    kind = "spot" if offer.spot else "on demand"
    return Finding(name, CheckResult.OK, f"{offer.size}, {kind}, ${offer.usd_per_hour:.4f}/h with its disk")


def image(region: str, name: str, there: bool) -> Finding:
    if there:
        return Finding(f"image {region}", CheckResult.OK, name)
    publisher, _, rest = name.partition(":")
    advice = f"az vm image list --location {region} --publisher {publisher} --all --output table"
    advice = "name one of this subscription in azure.json: az image list --output table" if not rest else advice
    return Finding(f"image {region}", CheckResult.FAIL, f"{name} is not available", advice)


def quota(offer: Offer, traits: AzureSize, usages: Mapping[str, tuple[int, int]], subscription: str) -> Finding:
    """Spot VMs count towards a limit of their own, others towards those of their family and the region."""
    name, region = f"quota {offer.place}", offer.place
    told: list[str] = []
    for limit in (SPOT_CORES,) if offer.spot else (traits.family, CORES):
        used, most = usages.get(limit.lower(), (0, 0))
        if used + traits.cpus > most:
            kind = "lowPriority" if limit == SPOT_CORES else "dedicated"
            scope = f"/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{region}"
            advice = (
                f"az quota update --resource-name {limit} --resource-type {kind} --scope {scope} "
                f"--limit-object value={used + traits.cpus}; or in the portal under Quotas"
            )
            found = f"{limit}: {used} of {most} vCPUs are in use, and {offer.size} needs {traits.cpus}"
            return Finding(name, CheckResult.FAIL, found, advice)
        told.append(f"{limit} {used} of {most} in use")
    return Finding(name, CheckResult.OK, f"{'; '.join(told)}; {offer.size} needs {traits.cpus}")


def addresses(region: str, usages: Mapping[str, tuple[int, int]], subscription: str) -> Finding:
    """A machine's public address counts against each of these limits; some subscriptions have not all of them."""
    name, told = f"addresses {region}", [one for one in ADDRESSES if one in usages]
    for limit in told:
        used, most = usages[limit]
        if used + 1 > most:
            scope = f"/subscriptions/{subscription}/providers/Microsoft.Network/locations/{region}"
            advice = (
                f"az quota update --resource-name {limit} --resource-type PublicIpAddresses --scope {scope} "
                f"--limit-object value={used + 1}; release machines: stoker cleanup; or set `public_address` to false "
                "in azure.json, with a `subnet` that has a NAT gateway"
            )
            found = f"{limit}: {used} of {most} public addresses are in use, and the machine needs 1"
            return Finding(name, CheckResult.FAIL, found, advice)
    if not told:
        return Finding(name, CheckResult.SKIP, "Azure names no limit of public addresses here")
    shown = "; ".join(f"{one} {usages[one][0]} of {usages[one][1]} in use" for one in told)
    return Finding(name, CheckResult.OK, f"{shown}; the machine needs 1")


def rights(missing: Sequence[str], who: str, scope: str, admission: str = "") -> Finding:
    """`admission` is the command of a team's administrator; without one, built-in roles are named."""
    if not missing:
        return Finding("rights", CheckResult.OK, "this login may create, tag and delete VMs")
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    commands = " && ".join(
        f"az role assignment create --role '{role}' --assignee {who} --scope {scope}" for role in roles_for(missing)
    )
    advice = f"an administrator runs: {admission}" if admission else f"an owner of the subscription runs: {commands}"
    return Finding("rights", CheckResult.FAIL, f"this login may not {shown}", advice)


def best(regions: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """A run needs one region: a failure in another is a warning where one of them works."""
    works = [name for name, found in regions.items() if all(one.verdict is not CheckResult.FAIL for one in found)]
    every = [one for found in regions.values() for one in found]
    told = [
        replace(one, verdict=CheckResult.WARN) if works and one.verdict is CheckResult.FAIL else one for one in every
    ]
    return list(dict.fromkeys(told))  # the image is the same for spot and on-demand VMs


# Besides writing the parts of a node: to deploy, list, tag and delete them.
_ALWAYS = (
    "Microsoft.Resources/deployments/write",
    "Microsoft.Resources/deployments/read",
    "Microsoft.Resources/deployments/cancel/action",
    "Microsoft.Resources/subscriptions/resourceGroups/read",
    "Microsoft.Resources/tags/write",
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Compute/virtualMachines/delete",
    "Microsoft.Compute/virtualMachines/deallocate/action",
)
_OWN_GROUP = (
    "Microsoft.Resources/subscriptions/resourceGroups/write",
    "Microsoft.Resources/subscriptions/resourceGroups/delete",
)


@dataclass(frozen=True, slots=True)
class Permission:
    """What one role allows, and what it excludes."""

    actions: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def allows(self, action: str) -> bool:
        return _fits(action, self.actions) and not _fits(action, self.left_out)


def needed(properties: Mapping[str, Any], *, shared: bool) -> list[str]:
    """From the deployment of a node itself: each of its parts is written with the caller's own rights."""
    kinds = sorted({str(one["type"]) for one in properties["template"]["resources"]})
    sets = [f"{kind}/delete" for kind in kinds if kind.endswith("/virtualMachineScaleSets")]
    return [*_ALWAYS, *(() if shared else _OWN_GROUP), *sets, *(f"{kind}/write" for kind in kinds)]


def lacking(wanted: Iterable[str], held: Sequence[Permission]) -> list[str]:
    return [action for action in wanted if not any(one.allows(action) for one in held)]


def roles_for(actions: Iterable[str]) -> list[str]:
    """The smallest common built-in roles that have them."""
    given = list(actions)
    access = [one for one in given if one.lower().startswith("microsoft.authorization/")]
    return [*(["Contributor"] if len(access) < len(given) else []), *(["User Access Administrator"] if access else [])]


def _fits(action: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)

"""What Azure's answers mean for a run, as findings with the next command. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from stoker.model.node.node import Offer
from stoker.model.workspace.finding import Finding, Verdict
from stoker.providers.azure.market.sizes import Size
from stoker.providers.azure.preflight.rights import roles_for

SPOT, TOTAL = "lowPriorityCores", "cores"
_SKEW_WARN_S, _SKEW_FAIL_S = 60.0, 300.0  # tokens begin and end by Azure's clock
MOST_GROUPS, MOST_ASSIGNMENTS = 980, 4000  # that Azure allows a subscription
_NEARLY = 0.9
_WORKS = ("enabled", "warned", "pastdue")


def login(claims: Mapping[str, Any]) -> Finding:
    who = claims.get("upn") or claims.get("unique_name") or claims.get("appid") or "somebody"
    kind = "" if claims.get("upn") or claims.get("unique_name") else "the service principal "
    found = f"{kind}{who}, object id {claims.get('oid', 'unknown')}, tenant {claims.get('tid', 'unknown')}"
    return Finding("login", Verdict.OK, found)


def clock(ahead: timedelta) -> Finding:
    off = abs(ahead.total_seconds())
    if off < 2:
        return Finding("clock", Verdict.OK, "this computer's clock agrees with Azure's")
    text = f"this computer's clock is {off:.0f} s {'behind' if ahead > timedelta() else 'ahead of'} Azure's"
    if off < _SKEW_WARN_S:
        return Finding("clock", Verdict.OK, text)
    verdict = Verdict.FAIL if off > _SKEW_FAIL_S else Verdict.WARN
    return Finding("clock", verdict, text, "set the clock by the network: sudo timedatectl set-ntp true")


def subscription(found: Mapping[str, Any]) -> Finding:
    state = str(found.get("state") or found.get("properties", {}).get("state") or "unknown")
    title = str(found.get("displayName") or found.get("properties", {}).get("displayName") or "")
    text = f"{title or 'it'} is {state}".strip()
    if state.lower() == "enabled":
        return Finding("subscription", Verdict.OK, text)
    advice = "look at its billing: az account show; or name another one in azure.json: az account list --output table"
    if state.lower() in _WORKS:
        return Finding("subscription", Verdict.WARN, f"{text}: a bill is not paid, and Azure will disable it", advice)
    return Finding("subscription", Verdict.FAIL, f"{text}: nothing can be made in it", advice)


def services(states: Mapping[str, str], *, made: bool = False) -> Finding:
    """`made`: whoever asks registers what is missing."""
    missing = [name for name, state in states.items() if state.lower() not in ("registered", "registering")]
    waiting = [name for name, state in states.items() if state.lower() == "registering"]
    if missing:
        commands = " && ".join(f"az provider register --namespace {name} --wait" for name in missing)
        verdict = Verdict.WARN if made else Verdict.FAIL
        advice = "the set-up registers them" if made else commands
        return Finding("services", verdict, f"not registered: {', '.join(missing)}", advice)
    if waiting:
        advice = f"az provider show --namespace {waiting[0]} --query registrationState"
        return Finding("services", Verdict.WARN, f"being registered: {', '.join(waiting)}", advice)
    return Finding("services", Verdict.OK, f"registered: {', '.join(name.split('.')[1] for name in states)}")


def limits(groups: int, assignments: int) -> Finding:
    """A node has a group and a role assignment of its own, or at least the latter."""
    found = f"{groups} of {MOST_GROUPS} resource groups, {assignments:,} of {MOST_ASSIGNMENTS:,} role assignments"
    used = max(groups / MOST_GROUPS, assignments / MOST_ASSIGNMENTS)
    advice = "remove what nobody needs: stoker cleanup; az group list --output table; az role assignment list --all"
    if used >= 1:
        return Finding("limits", Verdict.FAIL, found, advice)
    return Finding("limits", Verdict.WARN, found, advice) if used >= _NEARLY else Finding("limits", Verdict.OK, found)


def size(region: str, offer: Offer | None) -> Finding:
    name = f"size {region}"
    if offer is None:
        advice = "ask for less, or name other regions: stoker plan shows what fits"
        return Finding(name, Verdict.FAIL, "no size that fits is available to this subscription", advice)
    kind = "spot" if offer.spot else "on demand"
    return Finding(name, Verdict.OK, f"{offer.size}, {kind}, ${offer.usd_per_hour:.4f}/h with its disk")


def image(region: str, name: str, there: bool) -> Finding:
    if there:
        return Finding(f"image {region}", Verdict.OK, name)
    publisher, _, rest = name.partition(":")
    advice = f"az vm image list --location {region} --publisher {publisher} --all --output table"
    advice = "name one of this subscription in azure.json: az image list --output table" if not rest else advice
    return Finding(f"image {region}", Verdict.FAIL, f"{name} is not available", advice)


def quota(offer: Offer, traits: Size, usages: Mapping[str, tuple[int, int]], subscription: str) -> Finding:
    """Spot machines count against one limit of their own, others against that of their family and the region's."""
    name, region = f"quota {offer.place}", offer.place
    told: list[str] = []
    for limit in (SPOT,) if offer.spot else (traits.family, TOTAL):
        used, most = usages.get(limit.lower(), (0, 0))
        if used + traits.cpus > most:
            kind = "lowPriority" if limit == SPOT else "dedicated"
            scope = f"/subscriptions/{subscription}/providers/Microsoft.Compute/locations/{region}"
            advice = (
                f"az quota update --resource-name {limit} --resource-type {kind} --scope {scope} "
                f"--limit-object value={used + traits.cpus}; or in the portal under Quotas"
            )
            found = f"{limit}: {used} of {most} vCPUs are in use, and {offer.size} needs {traits.cpus}"
            return Finding(name, Verdict.FAIL, found, advice)
        told.append(f"{limit} {used} of {most} in use")
    return Finding(name, Verdict.OK, f"{'; '.join(told)}; {offer.size} needs {traits.cpus}")


def rights(missing: Sequence[str], who: str, scope: str, admission: str = "") -> Finding:
    """`admission` is the command of a team's administrator; without one Azure's own roles are named."""
    if not missing:
        return Finding("rights", Verdict.OK, "this login may make, mark and remove machines")
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    commands = " && ".join(
        f"az role assignment create --role '{role}' --assignee {who} --scope {scope}" for role in roles_for(missing)
    )
    advice = f"an administrator runs: {admission}" if admission else f"an owner of the subscription runs: {commands}"
    return Finding("rights", Verdict.FAIL, f"this login may not {shown}", advice)


def best(regions: Mapping[str, Sequence[Finding]]) -> list[Finding]:
    """A run needs one region: what fails in another is a warning where one of them works."""
    works = [name for name, found in regions.items() if all(one.verdict is not Verdict.FAIL for one in found)]
    every = [one for found in regions.values() for one in found]
    told = [replace(one, verdict=Verdict.WARN) if works and one.verdict is Verdict.FAIL else one for one in every]
    return list(dict.fromkeys(told))  # an image is the same for every kind of machine

"""How the subscription stands: whether it may be written to, and for which of Azure's services it is registered."""

from __future__ import annotations

from dataclasses import replace

from stoker.twin import ids
from stoker.twin.arm.ask import Ask
from stoker.twin.refusal import Refused, conflict
from stoker.twin.state import Cloud

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

"""One request to Resource Manager: its version, the caller's rights, locks, and whoever answers it."""

from __future__ import annotations

import re

from stoker.twin import ids, rights
from stoker.twin.arm import (  # importing a noun registers its routes
    budgets,
    deployments,
    disks,
    generic,
    groups,
    identities,
    network,
    operations,
    places,
    roles,
    storage,
    vmactions,
    vms,
    vmview,
)
from stoker.twin.arm.ask import ROUTES, Answer, Ask
from stoker.twin.refusal import Refused, invalid, locked
from stoker.twin.state import Cloud

NOUNS = (
    *(budgets, deployments, disks, generic, groups, identities, network, operations, places, roles, storage),
    *(vmactions, vms, vmview),
)

_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}(-preview|-alpha|-beta)?$")
_VERBS = {"GET": "read", "HEAD": "read", "PUT": "write", "PATCH": "write", "DELETE": "delete"}
_READ_BY_POST = {"validate", "exportTemplate", "whatIf"}


def answer(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    _check_version(ask)
    target = ask.target
    if target.subscription and target.subscription.lower() != cloud.subscription.lower():
        raise Refused(404, "SubscriptionNotFound", f"The subscription '{target.subscription}' could not be found.")
    handler = ROUTES.get((ask.method, target.kind.lower(), target.tail.lower()))
    if handler is None:
        raise _nobody(ask)
    if target.subscription and not _follows_up(target):
        rights.check(cloud, ask.claims, action(ask), target.id if not _collection(ask) else target.scope, ask.body)
    _check_locks(cloud, ask)
    return handler(cloud, ask)


def action(ask: Ask) -> str:
    """What the request is called in roles: `Microsoft.Compute/virtualMachines/start/action`."""
    kind = ask.target.kind.replace(ids.GROUPS, "Microsoft.Resources/subscriptions/resourceGroups")
    if ask.method == "POST":
        return f"{kind}/{ask.target.tail}/action"
    tail = f"/{ask.target.tail}" if ask.target.tail else ""
    return f"{kind}{tail}/{_VERBS[ask.method]}"


def _collection(ask: Ask) -> bool:
    return ask.method == "GET" and bool(ask.target.tail)


def _follows_up(target: ids.Target) -> bool:
    """Whoever was given an operation's address may ask how it goes."""
    return target.kind.lower().endswith(("/operations", "/operationresults"))


def _check_version(ask: Ask) -> None:
    if not ask.version:
        raise invalid(
            "The api-version query parameter (?api-version=) is required for all requests.",
            "MissingApiVersionParameter",
        )
    if not _VERSION.match(ask.version):
        raise invalid(f"The api-version '{ask.version}' is invalid.", "InvalidApiVersionParameter")


def _check_locks(cloud: Cloud, ask: Ask) -> None:
    verb = _VERBS.get(ask.method, "write")
    if verb == "read" or ask.target.tail in _READ_BY_POST or ask.target.kind == roles.LOCKS:
        return
    if lock := roles.lock_on(cloud, ask.target.id, verb):
        raise locked(ask.target.id, lock.target.scope, verb)


def _nobody(ask: Ask) -> Refused:
    target = ask.target
    if any(kind == target.kind.lower() for _, kind, _ in ROUTES):
        return Refused(
            405, "MethodNotAllowed", f"The twin does not answer {ask.method} of '{target.kind}/{target.tail}'."
        )
    word = f"{target.kind}/{target.tail}".rstrip("/")
    return Refused(404, "InvalidResourceType", f"The resource type '{word}' could not be found: the twin has none.")

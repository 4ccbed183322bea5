"""Who may do what: roles, their actions, assignments and their conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from stoker.twin.refusal import Refused
from stoker.twin.state import CloudState

_TOKEN = re.compile(
    r"\s*(?:(?P<action>ActionMatches\s*\{\s*'[^']*'\s*\})|(?P<attribute>@\w+\[[^\]]+\])|(?P<set>\{[^}]*\})"
    r"|(?P<sign>\(|\)|!|&&|\|\|)|(?P<word>[A-Za-z]+(?::[A-Za-z]+)?))"
)
_EQUAL = {"GuidEquals", "StringEquals", "StringEqualsIgnoreCase"}
_UNEQUAL = {"GuidNotEquals", "StringNotEquals", "StringNotEqualsIgnoreCase"}
_ANY, _NONE = "ForAnyOfAnyValues", "ForAnyOfAllValues"


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """What a condition can refer to: the action, the request, and existing resources. Names as in Azure:
    `RoleDefinitionId`, `PrincipalId`, `PrincipalType`."""

    action: str
    request: Mapping[str, str] = field(default_factory=dict)
    resource: Mapping[str, str] = field(default_factory=dict)


def holds(condition: str, facts: ConditionFacts) -> bool:
    try:
        return _ConditionReader(condition, facts).whole()
    except ValueError:
        return False


class _ConditionReader:
    """By recursive descent. Both sides of `AND` and `OR` are always parsed."""

    def __init__(self, text: str, facts: ConditionFacts) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._facts = facts

    def whole(self) -> bool:
        value = self._either()
        if self._peek():
            raise ValueError(f"unexpected {self._peek()}")
        return value

    def _either(self) -> bool:
        value = self._both()
        while self._peek().upper() in ("OR", "||"):
            self._take()
            value = self._both() or value
        return value

    def _both(self) -> bool:
        value = self._one()
        while self._peek().upper() in ("AND", "&&"):
            self._take()
            value = self._one() and value
        return value

    def _one(self) -> bool:
        token = self._take()
        if token == "!":
            return not self._one()
        if token == "(":
            value = self._either()
            if self._take() != ")":
                raise ValueError("a bracket is not closed")
            return value
        if token.startswith("ActionMatches"):
            return token.split("'")[1].lower() == self._facts.action.lower()
        if token.startswith("@"):
            return self._compared(token)
        raise ValueError(f"unexpected {token}")

    def _compared(self, attribute: str) -> bool:
        source, _, name = attribute[1:-1].partition("[")
        known = {"request": self._facts.request, "resource": self._facts.resource}[source.lower()]
        quantifier, _, operator = self._take().rpartition(":")
        wanted = [one.strip().strip("'").lower() for one in self._take().strip("{}").split(",")]
        found = known.get(name.rpartition(":")[2], "").lower()
        if not found:
            return False
        if operator in _EQUAL and quantifier in ("", _ANY):
            return found in wanted
        if operator in _UNEQUAL and quantifier in ("", _NONE):
            return found not in wanted
        raise ValueError(f"unknown operator {quantifier}:{operator}")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        if not (token := self._peek()):
            raise ValueError("unexpected end")
        self._at += 1
        return token


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"syntax error at {text[at : at + 20]!r}")
        found.append(match[0].strip())
        at = match.end()
    return found


ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"
DEFINITIONS = "Microsoft.Authorization/roleDefinitions"

# The ids of Azure's built-in roles.
BUILT_IN: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "8e3af657-a8ff-443c-a75c-2fe8c4bcb635": ("Owner", ("*",), ()),
    "b24988ac-6180-42a0-ab88-20f7382dd24c": (
        "Contributor",
        ("*",),
        ("Microsoft.Authorization/*/Delete", "Microsoft.Authorization/*/Write"),
    ),
    "acdd72a7-3385-48ef-bd42-f606fba81ae7": ("Reader", ("*/read",), ()),
    "18d7d88d-d35e-4fb5-a5c3-7773c20a72d9": (
        "User Access Administrator",
        ("*/read", "Microsoft.Authorization/*"),
        (),
    ),
    "f58310d9-a9f6-439a-9e8d-f62e7b41a168": (
        "Role Based Access Control Administrator",
        ("*/read", "Microsoft.Authorization/roleAssignments/write", "Microsoft.Authorization/roleAssignments/delete"),
        (),
    ),
    "9980e02c-c2be-4d73-94e8-173b1dc7cf3c": (
        "Virtual Machine Contributor",
        (
            "Microsoft.Compute/virtualMachines/*",
            "Microsoft.Compute/disks/*",
            "Microsoft.Compute/locations/*",
            "Microsoft.Network/networkInterfaces/*",
            "Microsoft.Network/*/read",
            "Microsoft.Resources/deployments/*",
            "Microsoft.Resources/subscriptions/resourceGroups/read",
        ),
        (),
    ),
    "40c5ff49-9181-41f8-ae61-143b0e78555e": (
        "Desktop Virtualization Power On Off Contributor",
        (
            "Microsoft.Compute/virtualMachines/start/action",
            "Microsoft.Compute/virtualMachines/read",
            "Microsoft.Compute/virtualMachines/instanceView/read",
            "Microsoft.Compute/virtualMachines/deallocate/action",
            "Microsoft.Compute/virtualMachines/restart/action",
            "Microsoft.Compute/virtualMachines/powerOff/action",
            "Microsoft.Authorization/*/read",
            "Microsoft.Resources/subscriptions/resourceGroups/read",
        ),
        (),
    ),
    "f1a07417-d97a-45cb-824c-7a7467783830": (
        "Managed Identity Operator",
        (
            "Microsoft.ManagedIdentity/userAssignedIdentities/*/read",
            "Microsoft.ManagedIdentity/userAssignedIdentities/*",
        ),
        (),
    ),
    "f6c7c914-8db3-469d-8ca1-694a8f32e121": (
        "AzureML Data Scientist",
        tuple(
            f"Microsoft.MachineLearningServices/workspaces/*/{verb}" for verb in ("read", "action", "delete", "write")
        ),
        (
            "Microsoft.MachineLearningServices/workspaces/delete",
            "Microsoft.MachineLearningServices/workspaces/write",
            "Microsoft.MachineLearningServices/workspaces/computes/write",
            "Microsoft.MachineLearningServices/workspaces/computes/delete",
        ),
    ),
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": ("Storage Blob Data Owner", (), ()),
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": ("Storage Blob Data Contributor", (), ()),
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": ("Storage Blob Data Reader", (), ()),
}
BLOB_ROLES = {  # and whether they write
    "b7e6dc6d-f1e8-4753-8033-0f276bb0955b": True,
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": True,
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": False,
}


@dataclass(frozen=True, slots=True)
class Role:
    """What an assigned role allows, what it excludes, and under which condition."""

    actions: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    condition: str = ""

    def allows(self, facts: ConditionFacts) -> bool:
        if not _fits(facts.action, self.actions) or _fits(facts.action, self.left_out):
            return False
        return not self.condition or holds(self.condition, facts)


def check(
    cloud: CloudState, claims: Mapping[str, Any], action: str, scope: str, body: Mapping[str, Any] | None = None
) -> None:
    """Refused where no role of the caller allows this action at this scope. `body` is what conditions refer to."""
    if not may(cloud, claims, action, scope, body):
        raise _refused(claims, action, scope)


def check_links(cloud: CloudState, claims: Mapping[str, Any], kind: str, scope: str, body: Mapping[str, Any]) -> None:
    """Creating a resource also requires the right to use what it refers to, wherever that is."""
    for action, id in _links(kind, body):
        if not may(cloud, claims, action, id):
            raise Refused(
                403,
                "LinkedAuthorizationFailed",
                f"The client '{claims['appid']}' with object id '{claims['oid']}' has permission to perform action "
                f"'{kind}/write' on scope '{scope}'; however, it does not have permission to perform action "
                f"'{action}' on the linked scope(s) '{id}' or the linked scope(s) are invalid.",
            )


def may(
    cloud: CloudState, claims: Mapping[str, Any], action: str, scope: str, body: Mapping[str, Any] | None = None
) -> bool:
    if claims["appid"] == cloud.admin:
        return True
    there = cloud.find(scope) if action.lower() == f"{ASSIGNMENTS}/delete".lower() else None
    given = body.get("properties", {}) if body else {}
    facts = ConditionFacts(action, _attributes(cloud, given), _attributes(cloud, there.properties if there else {}))
    return any(role.allows(facts) for role in roles(cloud, claims["oid"], scope))


def principal_type(cloud: CloudState, given: Mapping[str, Any]) -> str:
    """From the request, or from the directory: logins and VM identities are service principals."""
    known = {one.object_id for one in cloud.principals.values()}
    machines = {
        found
        for one in cloud.resources.values()
        for found in (one.properties.get("principalId"), (one.body.get("identity") or {}).get("principalId"))
        if one.kind != ASSIGNMENTS
    }
    known_here = str(given.get("principalId")) in known | machines
    return str(given.get("principalType") or ("ServicePrincipal" if known_here else "User"))


def _attributes(cloud: CloudState, given: Mapping[str, Any]) -> dict[str, str]:
    """Of a role assignment, as conditions name them."""
    if not given.get("roleDefinitionId"):
        return {}
    return {
        "RoleDefinitionId": str(given["roleDefinitionId"]).rsplit("/", 1)[-1],
        "PrincipalId": str(given.get("principalId", "")),
        "PrincipalType": principal_type(cloud, given),
    }


def _links(kind: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a resource refers to, with the right that this requires."""
    properties = body.get("properties") or {}
    for identity in (body.get("identity") or {}).get("userAssignedIdentities") or ():
        yield "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action", identity
    for nic in (properties.get("networkProfile") or {}).get("networkInterfaces") or ():
        yield "Microsoft.Network/networkInterfaces/join/action", str(nic.get("id", ""))
    if near := (properties.get("proximityPlacementGroup") or {}).get("id"):
        yield "Microsoft.Compute/proximityPlacementGroups/write", str(near)
    if kind.lower() == "microsoft.compute/virtualmachinescalesets":
        network = (properties.get("virtualMachineProfile") or {}).get("networkProfile") or {}
        for card in network.get("networkInterfaceConfigurations") or ():
            yield from _joins(card.get("properties") or {})
    if kind.lower() == "microsoft.network/networkinterfaces":
        yield from _joins(properties)


def _joins(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of a network interface: to its firewall, its subnet and its public address."""
    parts = [one.get("properties") or {} for one in properties.get("ipConfigurations") or ()]
    named = [("networkSecurityGroups", properties.get("networkSecurityGroup"))]
    named += [("virtualNetworks/subnets", one.get("subnet")) for one in parts]
    named += [("publicIPAddresses", one.get("publicIPAddress")) for one in parts]
    for word, reference in named:
        if reference and reference.get("id"):
            yield f"Microsoft.Network/{word}/join/action", str(reference["id"])


def _refused(claims: Mapping[str, Any], action: str, scope: str) -> Refused:
    return Refused(
        403,
        "AuthorizationFailed",
        f"The client '{claims['appid']}' with object id '{claims['oid']}' does not have authorization to perform "
        f"action '{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, "
        "please refresh your credentials.",
    )


def roles(cloud: CloudState, object_id: str, scope: str) -> list[Role]:
    """Those assigned at this scope or above it, once they have taken effect."""
    found: list[Role] = []
    for assignment in cloud.all(ASSIGNMENTS):
        if assignment.created_at + cloud.weather.roles_spread_s > cloud.now:
            continue
        above = assignment.target.scope.lower()
        if assignment.properties["principalId"] != object_id or not f"{scope.lower()}/".startswith(f"{above}/"):
            continue
        condition = str(assignment.properties.get("condition") or "")
        permissions = _permissions(cloud, str(assignment.properties["roleDefinitionId"]))
        found += [Role(given, left_out, condition) for given, left_out in permissions]
    return found


def readers(cloud: CloudState, scope: str) -> dict[str, bool]:
    """Who may read the blobs of a storage account, by object id, and whether they may write."""
    found: dict[str, bool] = {}
    for assignment in cloud.all(ASSIGNMENTS):
        above, role = assignment.target.scope.lower(), str(assignment.properties["roleDefinitionId"]).rsplit("/", 1)[-1]
        if role in BLOB_ROLES and f"{scope.lower()}/".startswith(f"{above}/"):
            who = str(assignment.properties["principalId"])
            found[who] = BLOB_ROLES[role] or found.get(who, False)
    return found


def _permissions(cloud: CloudState, definition: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    built_in = BUILT_IN.get(definition.rsplit("/", 1)[-1])
    if built_in:
        return [(built_in[1], built_in[2])]
    name = definition.rsplit("/", 1)[-1].lower()
    own = next((one for one in cloud.all(DEFINITIONS) if one.name.lower() == name), None)
    listed = own.properties.get("permissions", ()) if own else ()
    return [(tuple(one.get("actions", ())), tuple(one.get("notActions", ()))) for one in listed]


def _fits(action: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def known(cloud: CloudState, definition: str) -> bool:
    """A new one cannot be assigned everywhere at once."""
    name, late_s = definition.rsplit("/", 1)[-1].lower(), cloud.weather.roles_spread_s
    own = (one for one in cloud.all(DEFINITIONS) if one.created_at + late_s <= cloud.now)
    return name in BUILT_IN or any(one.name.lower() == name for one in own)

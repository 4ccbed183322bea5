"""Paths of requests, and resource ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

GROUPS = "Microsoft.Resources/resourceGroups"
SUBSCRIPTIONS = "Microsoft.Resources/subscriptions"

# The spelling in Azure's responses, whatever the client wrote.
_SPELLINGS = {
    word.lower(): word
    for word in (
        "Microsoft.Authorization",
        "Microsoft.Compute",
        "Microsoft.Consumption",
        "Microsoft.MachineLearningServices",
        "Microsoft.ManagedIdentity",
        "Microsoft.Network",
        "Microsoft.Resources",
        "Microsoft.Storage",
        "blobServices",
        "budgets",
        "codes",
        "computes",
        "containers",
        "data",
        "datastores",
        "deployments",
        "disks",
        "environments",
        "extensions",
        "jobs",
        "locks",
        "policyAssignments",
        "networkInterfaces",
        "networkSecurityGroups",
        "publicIPAddresses",
        "resourceGroups",
        "roleAssignments",
        "roleDefinitions",
        "securityRules",
        "storageAccounts",
        "subnets",
        "subscriptions",
        "userAssignedIdentities",
        "versions",
        "virtualMachineScaleSets",
        "virtualMachines",
        "virtualNetworks",
        "workspaces",
    )
}


@dataclass(frozen=True, slots=True)
class ResourceTarget:
    """What a path names. `kind` is the full type and `names` its names; `tail` is a last word without a name: a
    collection, or an action. `scope` is what an extension resource is attached to."""

    kind: str = ""
    names: tuple[str, ...] = ()
    tail: str = ""
    subscription: str = ""
    group: str = ""
    scope: str = ""

    @property
    def name(self) -> str:
        return self.names[-1] if self.names else ""

    @property
    def id(self) -> str:
        """The resource's id, without `tail`."""
        if self.kind == GROUPS:
            return self.scope
        if self.kind == SUBSCRIPTIONS:
            return f"/subscriptions/{self.subscription}"
        namespace, *types = self.kind.split("/")
        pairs = "".join(f"/{word}/{name}" for word, name in zip(types, self.names, strict=False))
        return f"{self.scope}/providers/{namespace}{pairs}"

    @property
    def parent(self) -> ResourceTarget:
        """The parent of a child resource."""
        kind = self.kind.rsplit("/", 1)[0]
        return ResourceTarget(kind, self.names[:-1], "", self.subscription, self.group, self.scope)


@lru_cache(maxsize=10_000)  # every list reads the kind of every resource
def read(path: str) -> ResourceTarget:
    """What this path names. Any path can be parsed; whether it exists is another question."""
    parts = [part for part in path.split("/") if part]
    last = max((index for index, part in enumerate(parts) if part.lower() == "providers"), default=-1)
    scope = _scope(parts[: last if last >= 0 else 4])
    if 0 <= last < len(parts) - 1:
        return _provided(parts[last + 1 :], scope)
    if last >= 0:
        return ResourceTarget(SUBSCRIPTIONS, (scope.subscription,), "providers", scope.subscription, "", scope.scope)
    return _plain(parts, scope)


def _scope(parts: list[str]) -> ResourceTarget:
    """The subscription, group or resource at the start of a path."""
    words = [part.lower() for part in parts]
    subscription = parts[1] if len(parts) > 1 and words[0] == "subscriptions" else ""
    group = parts[3] if len(parts) > 3 and subscription and words[2] == "resourcegroups" else ""
    text = "".join(f"/{spelt(part)}" for part in parts)
    return ResourceTarget(subscription=subscription, group=group, scope=text)


def _provided(parts: list[str], scope: ResourceTarget) -> ResourceTarget:
    namespace, rest = parts[0], parts[1:]
    types, names = rest[0::2], rest[1::2]
    tail = types.pop() if len(types) > len(names) else ""
    kind = "/".join(spelt(part) for part in (namespace, *types))
    return ResourceTarget(kind, tuple(names), tail, scope.subscription, scope.group, scope.scope)


def _plain(parts: list[str], scope: ResourceTarget) -> ResourceTarget:
    """Paths without a provider: subscriptions, groups, and words below them."""
    if scope.group:
        return ResourceTarget(GROUPS, (scope.group,), "/".join(parts[4:]), scope.subscription, scope.group, scope.scope)
    if scope.subscription:
        root = f"/subscriptions/{scope.subscription}"
        return ResourceTarget(SUBSCRIPTIONS, (scope.subscription,), "/".join(parts[2:]), scope.subscription, "", root)
    return ResourceTarget("", (), "/".join(parts))


def spelt(word: str) -> str:
    return _SPELLINGS.get(word.lower(), word)


def group_id(subscription: str, group: str) -> str:
    return f"/subscriptions/{subscription}/resourceGroups/{group}"


def resource_id(subscription: str, group: str, kind: str, *names: str) -> str:
    return ResourceTarget(kind, names, "", subscription, group, group_id(subscription, group)).id

"""Which rights a run needs where its machines are, and which of them a login lacks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

# Beside writing the parts of a node: to deploy, to see what is there, to mark it, and to remove it.
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
    """What one role allows, and what it leaves out."""

    actions: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def allows(self, action: str) -> bool:
        return _fits(action, self.actions) and not _fits(action, self.left_out)


def needed(properties: Mapping[str, Any], *, shared: bool) -> list[str]:
    """By the deployment of a node itself: each of its parts is written with the caller's own rights."""
    kinds = sorted({str(one["type"]) for one in properties["template"]["resources"]})
    sets = [f"{kind}/delete" for kind in kinds if kind.endswith("/virtualMachineScaleSets")]
    return [*_ALWAYS, *(() if shared else _OWN_GROUP), *sets, *(f"{kind}/write" for kind in kinds)]


def lacking(wanted: Iterable[str], held: Sequence[Permission]) -> list[str]:
    return [action for action in wanted if not any(one.allows(action) for one in held)]


def roles_for(actions: Iterable[str]) -> list[str]:
    """Azure's own roles that have them, the smallest that are usual."""
    given = list(actions)
    access = [one for one in given if one.lower().startswith("microsoft.authorization/")]
    return [*(["Contributor"] if len(access) < len(given) else []), *(["User Access Administrator"] if access else [])]


def _fits(action: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)

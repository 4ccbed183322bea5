"""Proximity placement groups: machines that are to stand near each other. The twin has one building for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.twin.arm import generic, groups
from stoker.twin.arm.requests.ask import ArmAnswer, Ask, page, route
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import CloudState, Resource
from stoker.twin.time.power import VMS

PROXIMITY = "Microsoft.Compute/proximityPlacementGroups"
WORD = "proximityPlacementGroup"  # of what is in one
_TYPES = ("Standard", "Ultra")


@route("PUT", PROXIMITY)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    given = {"proximityPlacementGroupType": "Standard", **(ask.body.get("properties") or {})}
    if given["proximityPlacementGroupType"] not in _TYPES:
        raise invalid(
            f"The value '{given['proximityPlacementGroupType']}' of parameter proximityPlacementGroupType is not valid."
        )
    cloud, answer = generic.store(cloud, ask, given)
    return cloud, ArmAnswer(answer.status, _shown(cloud, cloud.resources[str(answer.body["id"]).lower()]))


@route("GET", PROXIMITY)
def get(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, ArmAnswer(200, _shown(cloud, generic.require(cloud, ask)))


@route("GET", "Microsoft.Compute", "proximityPlacementGroups")
def list_all(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    if ask.target.group:
        groups.require(cloud, ask)
    return cloud, page(ask, [_shown(cloud, one) for one in cloud.all(PROXIMITY, ask.target.group)])


def check(cloud: CloudState, given: Mapping[str, Any], region: str) -> None:
    """Refuses a machine that names a group which is not there, or is in another region."""
    id = str((given.get(WORD) or {}).get("id", ""))
    found = cloud.find(id) if id else None
    if id and (found is None or found.kind != PROXIMITY or found.region != region):
        raise invalid(
            f"Resource {id} referenced by '{WORD}' was not found. Please make sure that the referenced resource "
            "exists, and that both resources are in the same region.",
            "InvalidResourceReference",
        )


def _members(cloud: CloudState, group: Resource) -> list[dict[str, str]]:
    named = [(one, str((one.properties.get(WORD) or {}).get("id", ""))) for one in cloud.all(VMS)]
    return [{"id": one.id} for one, id in named if id.lower() == group.id.lower()]


def _shown(cloud: CloudState, group: Resource) -> dict[str, Any]:
    return group.having(virtualMachines=_members(cloud, group)).answer()


def _free(cloud: CloudState, group: Resource) -> None:
    if used := _members(cloud, group):
        raise conflict(
            f"Proximity placement group {group.name} cannot be deleted because it still has {used[0]['id']}.",
            "OperationNotAllowed",
        )


generic.taggable(PROXIMITY)
generic.deletable(PROXIMITY, _free)

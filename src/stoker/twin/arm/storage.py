"""Storage accounts and their containers in Resource Manager. The Blob service itself is elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from typing import Any

from stoker.twin import rights
from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, page, route, shown
from stoker.twin.blob import Accounts, StorageAccount
from stoker.twin.refusal import conflict, invalid, not_found, parent_not_found
from stoker.twin.state import CloudState, Resource

ACCOUNTS = "Microsoft.Storage/storageAccounts"
CONTAINERS = f"{ACCOUNTS}/blobServices/containers"

_NAME = re.compile(r"[a-z0-9]{3,24}$")


def served(cloud: CloudState) -> Accounts:
    """What the Blob service must provide."""
    return {
        one.name: StorageAccount(
            tuple(one.secret["keys"]), _containers(cloud, one), rights.readers(cloud, one.id), cloud.key
        )
        for one in cloud.all(ACCOUNTS)
    }


def _containers(cloud: CloudState, account: Resource) -> frozenset[str]:
    return frozenset(one.name for one in cloud.below(account.id) if one.kind == CONTAINERS)


@route("PUT", ACCOUNTS)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Names are unique across all of Azure, which here is this twin."""
    name = ask.target.name
    if not _NAME.match(name):
        raise invalid(f"{name} is not a valid storage account name.", "AccountNameInvalid")
    there = cloud.find(ask.id)
    if there is None and _taken(cloud, name):
        raise conflict(f"The storage account named {name} is already taken.", "StorageAccountAlreadyTaken")
    properties = {
        **ask.body.get("properties", {}),
        "primaryEndpoints": {"blob": f"{cloud.blob}/{name}/"},
        "primaryLocation": resources.region_of(cloud, ask),
        "statusOfPrimary": "available",
        "creationTime": there.properties["creationTime"] if there else ask.stamp(),
    }
    cloud, answer = resources.store(cloud, ask, properties)
    made = cloud.resources[ask.id.lower()]
    return cloud.put(replace(made, secret={"keys": _keys(cloud, made)})), ArmAnswer(200, answer.body)


def _taken(cloud: CloudState, name: str) -> bool:
    return any(one.name == name for one in cloud.all(ACCOUNTS))


def _keys(cloud: CloudState, account: Resource) -> list[str]:
    digests = (hashlib.sha512(f"{cloud.key}/{account.id.lower()}/{number}".encode()).digest() for number in (1, 2))
    return [base64.b64encode(digest).decode() for digest in digests]


@route("POST", ACCOUNTS, "listKeys")
def list_keys(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    account = resources.require(cloud, ask)
    keys = [
        {"keyName": f"key{number}", "value": value, "permissions": "FULL"}
        for number, value in enumerate(account.secret["keys"], 1)
    ]
    return cloud, ArmAnswer(200, {"keys": keys})


@route("POST", "Microsoft.Storage", "checkNameAvailability")
def check_name(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    name = str(ask.body.get("name", ""))
    if not _NAME.match(name):
        told = {"reason": "AccountNameInvalid", "message": f"{name} is not a valid storage account name."}
        return cloud, ArmAnswer(200, {"nameAvailable": False, **told})
    if _taken(cloud, name):
        told = {"reason": "AlreadyExists", "message": f"The storage account named {name} is already taken."}
        return cloud, ArmAnswer(200, {"nameAvailable": False, **told})
    return cloud, ArmAnswer(200, {"nameAvailable": True})


@route("DELETE", ACCOUNTS)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """At once, with its containers."""
    there = cloud.find(ask.id)
    if there is None:
        return cloud, ArmAnswer(204)
    return cloud.drop(there.id, *(one.id for one in cloud.below(there.id))), ArmAnswer(200)


@route("PUT", CONTAINERS)
def put_container(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    if cloud.find(ask.target.parent.parent.id) is None:
        raise parent_not_found(ask.target.names[0])
    there = cloud.find(ask.id)
    properties: dict[str, Any] = {"publicAccess": "None", "leaseState": "Available", **ask.body.get("properties", {})}
    container = Resource(ask.id, {"properties": properties}, there.created_at if there else ask.now)
    return cloud.put(container), ArmAnswer(200 if there else 201, container.answer())


@route("GET", CONTAINERS)
def get_container(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    there = cloud.find(ask.id)
    if there is None:
        raise not_found(CONTAINERS, ask.target.name, ask.target.group)
    return cloud, ArmAnswer(200, there.answer())


@route("DELETE", CONTAINERS)
def delete_container(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud.drop(ask.id), ArmAnswer(200 if cloud.find(ask.id) else 204)


@route("GET", f"{ACCOUNTS}/blobServices", "containers")
def list_containers(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud, page(ask, shown([one for one in cloud.below(ask.id) if one.kind == CONTAINERS]))


resources.readable(ACCOUNTS)
resources.taggable(ACCOUNTS)

"""Versions of environments, codes and data: what jobs refer to by name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from stoker.twin.arm.ask import ArmAnswer, Ask, page, route, shown
from stoker.twin.ml import ASSETS, WORKSPACES
from stoker.twin.ml.workspaces import account_of, signed, workspace_of
from stoker.twin.refusal import Refused, conflict, invalid
from stoker.twin.state import CloudState, Resource

_FIXED = {"environments": ("image", "build", "condaFile"), "codes": ("codeUri",), "data": ("dataUri", "dataType")}


def not_there(kind: str, name: str) -> Refused:
    return Refused(404, "UserError", f"No {kind} was found with the name and version {name}.")


def put(word: str, cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """A version never changes in what it refers to; its tags and description do."""
    workspace_of(cloud, ask)
    given = {**(ask.body.get("properties") or {})}
    there = cloud.find(ask.id)
    _check(word, given)
    if there:
        for field in _FIXED[word]:
            if given.get(field) not in (None, there.properties.get(field)):
                raise conflict(
                    f"A {word} version with this name and version already exists, and its {field} cannot be changed.",
                    "UserError",
                )
        given = {**there.properties, **given}
    parent = Resource(ask.target.parent.id, {"properties": {"latestVersion": ask.target.name}}, ask.now)
    made = Resource(ask.id, {"properties": {"isAnonymous": False, "isArchived": False, **given}}, ask.now)
    made = made.having(provisioningState="Succeeded", tags=given.get("tags") or {})
    return cloud.put(parent, made), ArmAnswer(200 if there else 201, made.answer())


def _check(word: str, given: Mapping[str, Any]) -> None:
    if word == "environments" and not (given.get("image") or given.get("build")):
        raise invalid("An environment has an image, or a build context.", "UserError")
    if word == "data" and not given.get("dataUri"):
        raise invalid("The dataUri of a data version is required.", "UserError")


def get(word: str, cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    workspace_of(cloud, ask)
    found = cloud.find(ask.id)
    if found is None:
        raise not_there(word, ":".join(ask.target.names[1:]))
    return cloud, ArmAnswer(200, found.answer())


def list_versions(word: str, cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Of one container; of codes, those with a hash where one is asked for."""
    found = [one for one in cloud.below(ask.target.id) if one.kind == f"{WORKSPACES}/{word}/versions"]
    if wanted := ask.query.get("hash"):
        found = [one for one in found if (one.properties.get("properties") or {}).get("hash_sha256") == wanted]
    if "createdtime desc" in ask.query.get("$orderBy", ask.query.get("$orderby", "")).lower():
        found.reverse()
    return cloud, page(ask, shown(found))


def list_all(word: str, cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    found = [one for one in cloud.below(ask.target.id) if one.kind == f"{WORKSPACES}/{word}"]
    return cloud, page(ask, shown(found))


def delete(word: str, cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:  # noqa: ARG001  # as the others
    return cloud.drop(ask.id), ArmAnswer(200 if cloud.find(ask.id) else 204)


for _word in ASSETS:
    _versions = f"{WORKSPACES}/{_word}/versions"
    route("PUT", _versions)(partial(put, _word))
    route("GET", _versions)(partial(get, _word))
    route("DELETE", _versions)(partial(delete, _word))
    route("GET", f"{WORKSPACES}/{_word}", "versions")(partial(list_versions, _word))
    route("GET", f"{WORKSPACES}/{_word}")(partial(get, _word))
    route("GET", WORKSPACES, _word)(partial(list_all, _word))


@route("POST", f"{WORKSPACES}/codes/versions", "startPendingUpload")
def start_upload(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """A container of its own for the files of a code version, with an address that may write there."""
    workspace = workspace_of(cloud, ask)
    account = account_of(cloud, workspace)
    name = hashlib.sha256(ask.id.lower().encode()).hexdigest()[:32]
    container = f"{workspace.properties['workspaceId'][:8]}-{name}"
    cloud = cloud.put(
        Resource(f"{account.id}/blobServices/default/containers/{container}", {"properties": {}}, ask.now)
    )
    uri = signed(cloud, account, container, ask.wall(ask.now), "rcwl")
    blob = {
        "blobUri": uri.split("?")[0],
        "credential": {"credentialType": "SAS", "sasUri": uri},
        "storageAccountArmId": account.id,
    }
    told = {"pendingUploadId": ask.uuid("upload"), "pendingUploadType": "TemporaryBlobReference"}
    return cloud, ArmAnswer(200, {**told, "blobReferenceForConsumption": blob})


def resolve(cloud: CloudState, workspace: Resource, word: str, id: str) -> Resource:
    """By a full id, or as `azureml:name:version` or `azureml:name@latest`."""
    text = id.removeprefix("azureml:")
    if not text.startswith("/"):
        name, _, version = text.replace("@latest", ":@latest").partition(":")
        text = f"{workspace.id}/{word}/{name}/versions/{version}"
    if text.lower().endswith(("/versions/@latest", "/labels/latest")):
        latest = cloud.find(text.rsplit("/", 2)[0])
        text = f"{text.rsplit('/', 2)[0]}/versions/{latest.properties['latestVersion'] if latest else ''}"
    found = cloud.find(text)
    if found is None:
        raise not_there(word, id)
    return found

"""Workspaces, and the datastores that each of them has."""

from __future__ import annotations

from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route, shown
from stoker.twin.arm.storage import ACCOUNTS
from stoker.twin.ml import ARTIFACTS, BLOBS, DATASTORES, NAMESPACE, WORKSPACES
from stoker.twin.ml.access import account_of
from stoker.twin.refusal import conflict, invalid
from stoker.twin.state import CloudState, Resource

_PUT_S, _DELETE_S = 1.0, 1.0


@route("PUT", WORKSPACES)
def put(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """With its two containers and datastores, as Azure makes them."""
    there = cloud.find(ask.id)
    given = dict(needed(ask.body, "properties"))
    account = cloud.find(str(needed(given, "storageAccount")))
    if account is None or account.kind != ACCOUNTS:
        raise invalid(f"Missing dependent resources in workspace json: {given['storageAccount']}.", "ValidationError")
    guid = there.properties["workspaceId"] if there else ask.uuid("workspace")
    region = resources.region_of(cloud, ask)
    scope = f"/subscriptions/{ask.target.subscription}/resourceGroups/{ask.target.group}/providers/{NAMESPACE}"
    uri = f"azureml://{ask.base.removeprefix('https://')}/mlflow/v1.0{scope}/workspaces/{ask.target.name}"
    properties = {
        "friendlyName": ask.target.name,
        "publicNetworkAccess": "Enabled",
        **given,
        "storageAccount": account.id,
        "workspaceId": guid,
        "discoveryUrl": f"{ask.base}/discovery",
        "mlFlowTrackingUri": uri,
        "tenantId": cloud.tenant,
    }
    identity = {"type": "SystemAssigned", "tenantId": cloud.tenant, "principalId": ask.uuid("ml principal")}
    cloud, answer = resources.store(cloud, ask, properties, identity=there.body["identity"] if there else identity)
    workspace = cloud.resources[ask.id.lower()]
    if there is None:
        cloud = _with_stores(cloud, ask, workspace, account, guid)
    cloud, operation = begin(cloud, ask, "put", _PUT_S)
    return cloud.put(workspace.having(provisioningState="Creating")), accepted(
        ask, operation, {**answer.body, "location": region}, status=answer.status
    )


def _with_stores(cloud: CloudState, ask: Ask, workspace: Resource, account: Resource, guid: str) -> CloudState:
    for name, container in ((BLOBS, f"azureml-blobstore-{guid}"), (ARTIFACTS, "azureml")):
        place = Resource(f"{account.id}/blobServices/default/containers/{container}", {"properties": {}}, ask.now)
        cloud = cloud.put(place, _store(workspace, name, account, container, ask.now))
    return cloud


def _store(workspace: Resource, name: str, account: Resource, container: str, now: float) -> Resource:
    properties = {
        "datastoreType": "AzureBlob",
        "accountName": account.name,
        "containerName": container,
        "endpoint": "core.windows.net",
        "protocol": "https",
        "serviceDataAccessAuthIdentity": "None",
        "credentials": {"credentialsType": "AccountKey"},
        "isDefault": name == BLOBS,
        "tags": {},
        "properties": {},
    }
    return Resource(f"{workspace.id}/datastores/{name}", {"properties": properties}, now)


@route("DELETE", WORKSPACES)
def delete(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """Its computes have to go first; everything else of it goes with it."""
    there = cloud.find(ask.id)
    if there is None:
        return cloud, ArmAnswer(204)
    if any(one.kind.endswith("/computes") for one in cloud.below(there.id)):
        raise conflict("Cannot delete workspace with existing computes. Delete the computes first.", "Conflict")
    cloud = cloud.drop(*(one.id for one in cloud.below(there.id)))
    cloud, operation = begin(cloud, ask, "delete", _DELETE_S)
    return cloud, accepted(ask, operation)


resources.readable(WORKSPACES)
resources.taggable(WORKSPACES)


@route("PUT", DATASTORES)
def put_store(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    """A container of an account of this cloud. The credentials that are given are not returned."""
    workspace = workspace_of(cloud, ask)
    given = needed(ask.body, "properties")
    if given.get("datastoreType") != "AzureBlob":
        raise invalid("The twin has datastores of type AzureBlob, and no others.", "UserError")
    container, account = str(needed(given, "containerName")), str(needed(given, "accountName"))
    found = next((one for one in cloud.all(ACCOUNTS) if one.name == account), None)
    if found is None:
        raise invalid(f"The storage account {account} could not be found.", "UserError")
    made = _store(workspace, ask.target.name, found, container, ask.now).having(isDefault=bool(given.get("isDefault")))
    cloud = cloud.put(Resource(f"{found.id}/blobServices/default/containers/{container}", {"properties": {}}, ask.now))
    return cloud.put(made), ArmAnswer(201, made.answer())


@route("GET", DATASTORES)
def get_store(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    workspace_of(cloud, ask)
    return cloud, ArmAnswer(200, resources.require(cloud, ask).answer())


@route("GET", WORKSPACES, "datastores")
def list_stores(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    found = [one for one in cloud.below(resources.require(cloud, ask).id) if one.kind == DATASTORES]
    if ask.query.get("isDefault", "").lower() == "true":
        found = [one for one in found if one.properties["isDefault"]]
    return cloud, page(ask, shown(found))


@route("POST", DATASTORES, "listSecrets")
def secrets(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    account = account_of(cloud, workspace_of(cloud, ask))
    name = str(resources.require(cloud, ask).properties["accountName"])
    account = next(one for one in cloud.all(ACCOUNTS) if one.name == name) if name != account.name else account
    return cloud, ArmAnswer(200, {"secretsType": "AccountKey", "key": account.secret["keys"][0]})


@route("DELETE", DATASTORES)
def delete_store(cloud: CloudState, ask: Ask) -> tuple[CloudState, ArmAnswer]:
    return cloud.drop(ask.id), ArmAnswer(200 if cloud.find(ask.id) else 204)


def workspace_of(cloud: CloudState, ask: Ask) -> Resource:
    """Of anything inside one; refused where there is none."""
    target = ask.target
    while target.kind.lower() != WORKSPACES.lower():
        target = target.parent
    return resources.require(cloud, ask.at(target.id, {}, "GET"))

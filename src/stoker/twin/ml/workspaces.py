"""Workspaces, and where their bytes are: the datastores of each as containers, and signed addresses of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from stoker.twin.arm import resources
from stoker.twin.arm.ask import ArmAnswer, Ask, accepted, begin, needed, page, route, shown
from stoker.twin.arm.storage import ACCOUNTS
from stoker.twin.ml import ARTIFACTS, BLOBS, DATASTORES, NAMESPACE, WORKSPACES
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


_VERSION = "2021-12-02"
_STAMP = "%Y-%m-%dT%H:%M:%SZ"
_LASTS = timedelta(days=30)
_URI = re.compile(
    r"azureml:(?://subscriptions/[^/]+/resource[gG]roups/[^/]+(?:/providers/[^/]+)?/workspaces/[^/]+/|//)"
    r"datastores/(?P<store>[^/]+)(?:/paths)?/(?P<path>.*)$"
)


def account_of(cloud: CloudState, workspace: Resource) -> Resource:
    found = cloud.find(str(workspace.properties.get("storageAccount", "")))
    if found is None or found.kind != ACCOUNTS:
        raise invalid("The storage account of the workspace could not be found.", "ValidationError")
    return found


def datastore(cloud: CloudState, workspace: Resource, name: str) -> Resource:
    """Refused, as a user error, where the workspace has none of this name."""
    found = cloud.find(f"{workspace.id}/datastores/{name}")
    if found is None or found.kind != DATASTORES:
        raise invalid(f"Could not find datastore {name} in workspace {workspace.name}.", "UserError")
    return found


def place(cloud: CloudState, workspace: Resource, uri: str, now: datetime, rights: str = "rl") -> dict[str, str]:
    """A path in a datastore as a signed container and a prefix. Refused where it is no such path."""
    found = _URI.match(uri)
    if not found:
        raise invalid(
            f"Invalid azureml data reference {uri}: expected azureml://datastores/NAME/paths/PATH.", "UserError"
        )
    store = datastore(cloud, workspace, found["store"])
    container = str(store.properties["containerName"])
    account = _account_named(cloud, str(store.properties["accountName"]))
    return {"container": signed(cloud, account, container, now, rights), "prefix": found["path"].strip("/")}


def blob_place(cloud: CloudState, url: str, now: datetime) -> dict[str, str]:
    """The same for the address of a blob or a folder of them, in an account of this cloud."""
    inside = url.split("?")[0].removeprefix(f"{cloud.blob}/")
    account, _, rest = inside.partition("/")
    container, _, prefix = rest.partition("/")
    if host := re.match(r"https?://([a-z0-9]+)\.blob\.[^/]+/([^/]+)/?(.*)$", url.split("?")[0]):
        account, container, prefix = host.groups()
    return {
        "container": signed(cloud, _account_named(cloud, account), container, now, "rl"),
        "prefix": prefix.strip("/"),
    }


def _account_named(cloud: CloudState, name: str) -> Resource:
    for one in cloud.all(ACCOUNTS):
        if one.name == name:
            return one
    raise invalid(f"The storage account {name} could not be found.", "UserError")


def signed(cloud: CloudState, account: Resource, container: str, now: datetime, rights: str, blob: str = "") -> str:
    """The address of a container, or of a blob in it, with a signature that is valid for a month."""
    start, end = (moment.strftime(_STAMP) for moment in (now - timedelta(minutes=15), now + _LASTS))
    what = f"/blob/{account.name}/{container}" + (f"/{blob}" if blob else "")
    kind = "b" if blob else "c"
    text = "\n".join((rights, start, end, what, "", "", "", _VERSION, kind, *[""] * 7))
    key = base64.b64decode(account.secret["keys"][0])
    signature = base64.b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).decode()
    query = {"sv": _VERSION, "sr": kind, "sp": rights, "st": start, "se": end, "sig": signature}
    path = quote(f"/{account.name}/{container}" + (f"/{blob}" if blob else ""))
    return f"{cloud.blob}{path}?{urlencode(query)}"


def default_output(job: str) -> dict[str, Any]:
    """Where logs and `./outputs` of a job are found."""
    uri = f"azureml://datastores/workspaceartifactstore/ExperimentRun/dcid.{job}"
    return {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": uri}


def named_output(job: str, name: str) -> str:
    return f"azureml://datastores/{BLOBS}/paths/azureml/{job}/{name}/"

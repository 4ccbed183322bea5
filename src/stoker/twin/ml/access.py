"""Where a workspace's bytes are: its datastores as containers, and signed addresses of them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from stoker.twin.arm.storage import ACCOUNTS
from stoker.twin.ml import BLOBS, DATASTORES
from stoker.twin.refusal import invalid
from stoker.twin.state import CloudState, Resource

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

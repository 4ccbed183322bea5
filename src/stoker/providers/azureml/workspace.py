"""A workspace of Azure ML, as the provider reads it from its file, and its REST interface, with the login of Azure's
own SDKs in `azure.json`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stoker.errors import NotFound, NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.providers.azure.account.account import Account
from stoker.providers.azure.account.clients import Clients, speaking
from stoker.providers.azureml.bodies import ClusterSight, read_cluster
from stoker.stores import Store
from stoker.stores.access import Access, Route
from stoker.stores.opening import open_access

_API, _STORAGE_API = "2024-04-01", "2023-05-01"
_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?$")
_READY_S = 120.0  # for a new cluster
_MISSING = 404
_SAS_VERSION = "2021-12-02"
_DATASTORE = re.compile(r"azureml:.*/datastores/(?P<store>[^/]+)(?:/paths)?/(?P<path>.*)")
_ASSET = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:[@:](?P<version>[\w.-]+))?")
READS = timedelta(days=30)  # what data assets are read with
_EARLY, _LASTS = timedelta(minutes=15), timedelta(hours=1)  # clocks differ


@dataclass(frozen=True, slots=True)
class Datastore:
    """A container that the workspace knows. Without key and SAS, people open it with their own login."""

    name: str
    account: str
    container: str
    url: str
    key: str = field(default="", repr=False)
    sas: str = field(default="", repr=False)

    @property
    def reading(self) -> str:
        """A token that only reads; empty: the workspace has neither key nor SAS for it."""
        return signature(self.account, self.container, self.key, "rl", READS) if self.key else self.sas


class LearningWorkspace(Clients):
    def __init__(self, account: Account, id: str) -> None:
        super().__init__(account)
        self._id = id

    @cached_property
    def region(self) -> str:
        return str(self._told["location"])

    @cached_property
    def _told(self) -> dict[str, Any]:
        found = self._ask("GET", "")
        if found is None:
            raise ProviderFailed(
                f"Azure has no Azure ML workspace {self._id}", hint="correct `workspace` in azureml.json"
            )
        return found

    def compute_id(self, name: str) -> str:
        return f"{self._id}/computes/{name}"

    def cluster(self, name: str) -> ClusterSight | None:
        found = self._ask("GET", f"/computes/{name}")
        if found is None or found["properties"].get("computeType") != "AmlCompute":
            return None
        scale = found["properties"]["properties"]["scaleSettings"]
        return read_cluster(found, _seconds(str(scale.get("nodeIdleTimeBeforeScaleDown", ""))))

    def make_cluster(self, name: str, body: Mapping[str, Any]) -> None:
        """Returns when it takes jobs."""
        self._ask("PUT", f"/computes/{name}", body)
        deadline = time.monotonic() + _READY_S
        while (found := self._ask("GET", f"/computes/{name}")) is None or _state(found) in ("Creating", "Updating"):
            if time.monotonic() > deadline:
                raise ProviderUnavailable(f"the compute cluster {name} is not ready yet")
            time.sleep(0.5)
        if _state(found) == "Failed":
            raise ProviderFailed(f"Azure ML could not make the compute cluster {name}")

    def environment(self, image: str) -> str:
        """The id of the environment with this image, which is made once."""
        place = f"/environments/stoker/versions/{hashlib.sha256(image.encode()).hexdigest()[:12]}"
        if self._ask("GET", place) is None:
            self._ask("PUT", place, {"properties": {"image": image, "osType": "Linux"}})
        return f"{self._id}{place}"

    def job(self, name: str) -> dict[str, Any] | None:
        return self._ask("GET", f"/jobs/{name}")

    def jobs(self, tag: str) -> Iterator[dict[str, Any]]:
        """Those with this tag, the newest first."""
        page = self._ask("GET", "/jobs", tag=tag)
        while page:
            yield from page["value"]
            page = self._sent("GET", page["nextLink"], None) if page.get("nextLink") else None

    def submit(self, name: str, body: Mapping[str, Any]) -> None:
        self._ask("PUT", f"/jobs/{name}", body)

    def relabel(self, job: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """The rest is sent as it was read, without what Azure ML adds."""
        given = {name: value for name, value in job["properties"].items() if name not in ("status", "services")}
        self._ask("PUT", f"/jobs/{job['name']}", {"properties": {**given, "tags": dict(tags)}})

    def cancel(self, name: str) -> None:
        self._ask("POST", f"/jobs/{name}/cancel", {})

    def error_of(self, name: str) -> str:
        """Of a failed job, as its history has it."""
        base = str(self._told["properties"]["discoveryUrl"])
        urls = self._sent("GET", base, None) or {}
        found = self._sent("GET", f"{urls.get('history', '')}/history/v1.0{self._id}/runs/{name}/details", None) or {}
        return str((((found.get("error") or {}).get("error")) or {}).get("message") or "").strip()

    # Files

    def write(self, name: str, data: bytes) -> None:
        self.files().put(name, data)

    def remove(self, prefix: str) -> None:
        self.files().remove_below(prefix)

    def files(self) -> Store:
        """What is below `stoker/` in the default datastore of the workspace, opened as Azure ML itself opens it."""
        found = self.datastore("workspaceblobstore")
        if not (found.key or found.sas):
            raise ProviderFailed("the workspace's datastore `workspaceblobstore` cannot be opened")
        signed = found.sas or signature(found.account, found.container, found.key)
        return open_access(Access((Route("stoker/", f"{found.url}/stoker/", signed, writes=True),)))

    def datastore(self, name: str) -> Datastore:
        """Raises NotFound."""
        place = f"/datastores/{name}"
        found = self._ask("GET", place)
        if found is None:
            raise NotFound(f"the workspace has no datastore `{name}`", hint="see `az ml datastore list`")
        told = found["properties"]
        account, container = str(told.get("accountName", "")), str(told.get("containerName") or told.get("filesystem"))
        secrets = self._ask("POST", f"{place}/listSecrets", {}) if told.get("credentials") else {}
        sas, key = (str((secrets or {}).get(one) or "") for one in ("sasToken", "key"))
        return Datastore(name, account, container, self._blobs(told) + f"/{container}", key, sas.removeprefix("?"))

    def _blobs(self, told: Mapping[str, Any]) -> str:
        """The Blob service of an account: of the workspace's own, as the account says itself."""
        own = str(self._told["properties"]["storageAccount"])
        if own.rpartition("/")[2] == told.get("accountName"):
            account = self._sent("GET", self._arm(own, _STORAGE_API), None)
            if account:
                return str(account["properties"]["primaryEndpoints"]["blob"]).rstrip("/")
        protocol, endpoint = told.get("protocol") or "https", told.get("endpoint") or "core.windows.net"
        return f"{protocol}://{told.get('accountName')}.blob.{endpoint}"

    def data(self, name: str) -> tuple[Datastore, str]:
        """Where the files of a data asset are: a datastore, and the path in it. Raises NotFound."""
        uri = str(self._asset("data", name)["properties"].get("dataUri", ""))
        if found := _DATASTORE.search(uri):
            return self.datastore(found["store"]), found["path"].strip("/")
        page = self._ask("GET", "/datastores")
        for one in page["value"] if page else ():
            if "accountName" not in one["properties"]:
                continue
            there = self.datastore(str(one["name"]))
            if uri.startswith(f"{there.url}/"):
                return there, uri.removeprefix(f"{there.url}/").strip("/")
        hint = f"add the store that it is in, and give the URL of its files as data: {uri}"
        raise NotFound(f"the data asset `{name}` is in no datastore of the workspace", hint=hint)

    def environment_named(self, name: str) -> str:
        """The id of an environment of the workspace. Raises NotFound."""
        return str(self._asset("environments", name)["id"])

    def _asset(self, kind: str, name: str) -> dict[str, Any]:
        """`NAME`, `NAME@VERSION` or `NAME:VERSION`; without a version, and as `latest`, the newest one."""
        found = _ASSET.fullmatch(name)
        if not found:
            raise NotFound(f"the name of an asset such as `coco@3`, not `{name}`")
        version = found["version"] or ""
        if version in ("", "latest"):
            container = self._ask("GET", f"/{kind}/{found['name']}")
            version = str(container["properties"].get("latestVersion") or "") if container else ""
        asset = self._ask("GET", f"/{kind}/{found['name']}/versions/{version}") if version else None
        if asset is None:
            what = {"data": "data asset", "environments": "environment"}[kind]
            raise NotFound(f"the workspace has no {what} `{name}`", hint=f"see `az ml {kind.rstrip('s')} list`")
        return asset

    # Requests

    def _ask(
        self, method: str, place: str, body: Mapping[str, Any] | None = None, **query: str
    ) -> dict[str, Any] | None:
        words = "".join(f"&{name}={value}" for name, value in query.items())
        return self._sent(method, f"{self._arm(self._id + place, _API)}{words}", body)

    def _arm(self, id: str, version: str) -> str:
        return f"{self._account.arm.rstrip('/')}{id}?api-version={version}"

    def _sent(self, method: str, url: str, body: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """None where it does not exist, or where nothing is answered."""
        with speaking(f"asking Azure ML for {url.split('?')[0].rsplit('/', 1)[-1]}"):
            from azure.core.rest import HttpRequest

            given: Any = {} if body is None else {"json": dict(body)}
            answer = self._pipeline.send_request(HttpRequest(method, url, **given))
            if answer.status_code == _MISSING and method == "GET":
                return None
            answer.raise_for_status()
            found: dict[str, Any] | None = answer.json() if answer.content else None
            return found

    @cached_property
    def _pipeline(self) -> Any:
        from azure.core.pipeline.policies import RetryPolicy
        from azure.mgmt.core import ARMPipelineClient
        from azure.mgmt.core.policies import ARMChallengeAuthenticationPolicy

        scope = f"{self._account.arm.rstrip('/')}/.default"
        policies = [RetryPolicy(), ARMChallengeAuthenticationPolicy(self._credential, scope)]
        return ARMPipelineClient(self._account.arm, policies=policies, transport=self._transport)


def signature(account: str, container: str, key: str, rights: str = "rwdl", lasts: timedelta = _LASTS) -> str:
    """A token for a container."""
    now = datetime.now(UTC)
    start, end = (f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in (now - _EARLY, now + lasts))
    text = "\n".join((rights, start, end, f"/blob/{account}/{container}", *[""] * 3, _SAS_VERSION, "c", *[""] * 7))
    signed = hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)
    query = {"sv": _SAS_VERSION, "sr": "c", "sp": rights, "st": start, "se": end}
    return urlencode({**query, "sig": base64.b64encode(signed).decode()})


def _state(found: Mapping[str, Any]) -> str:
    return str(found["properties"].get("provisioningState", ""))


def _seconds(text: str) -> float:
    found = _DURATION.match(text)
    days, hours, minutes, rest = (float(one or 0) for one in found.groups()) if found else (0.0, 0.0, 0.0, 0.0)
    return ((days * 24 + hours) * 60 + minutes) * 60 + rest


FILE = "azureml.json"
NOT_SET_UP = f"Azure ML is not set up on this computer: describe your workspace in {FILE}"
NO_CLUSTER = f"name a compute cluster: make one with `stoker cluster create`, or set `compute` in {FILE}"
IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"
_WORKSPACE = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.MachineLearningServices/workspaces/[^/]+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LearningAccount:
    workspace: str  # its resource id
    compute: str = ""  # the cluster of jobs that name none
    image: str = IMAGE  # has a Python: the agent runs on it


def read_learning(path: Path) -> LearningAccount:
    """Raises NotSetUp, with what to do."""
    hint = "see the guide to Azure ML"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotSetUp(NOT_SET_UP, hint=hint) from None
    except (OSError, ValueError) as error:
        raise NotSetUp(f"{path} cannot be read: {error}", hint=hint) from None
    names = {one.name for one in fields(LearningAccount)}
    if not isinstance(found, dict) or not _WORKSPACE.fullmatch(str(found.get("workspace", ""))):
        raise NotSetUp(f"{path}: `workspace` is not the resource id of an Azure ML workspace", hint=hint)
    for name, value in found.items():
        if name not in names or not isinstance(value, str):
            raise NotSetUp(f"{path}: `{name}` is unknown or not text", hint=hint)
    return LearningAccount(**found)

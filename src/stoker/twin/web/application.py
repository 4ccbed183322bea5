"""All HTTPS requests to the twin: which handler gets which path, the faults of the weather, and logging in."""

from __future__ import annotations

import hmac
import json
import logging
import re
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

from stoker.twin import ids, tokens
from stoker.twin.arm import dispatch
from stoker.twin.arm.ask import ArmAnswer, Ask
from stoker.twin.blob import BlobService
from stoker.twin.market import catalog
from stoker.twin.ml import NAMESPACE, history
from stoker.twin.refusal import Refused, invalid, throttled
from stoker.twin.state import CloudState
from stoker.twin.time import weather
from stoker.twin.tokens import Person, people
from stoker.twin.web import blobs, odata, retail
from stoker.twin.web.control import TwinControl
from stoker.twin.web.server import Response, WebRequest
from stoker.twin.world import TwinWorld


def answer_login(cloud: CloudState, request: WebRequest) -> Response | None:
    """None where the path does not belong to the login."""
    path = request.path.lower().rstrip("/")
    if path == "/metadata/endpoints":
        return Response(200, _endpoints(cloud, request))
    if path == "/metadata/aliases.json":
        return Response(200, _aliases())
    if path.endswith("/.well-known/openid-configuration"):
        return _openid(cloud, request)
    if path == "/common/discovery/instance":
        return Response(200, _discovery(cloud, request))
    if path.endswith(("/oauth2/v2.0/token", "/oauth2/token")) and request.method == "POST":
        return _token(cloud, request)
    return None


def _token(cloud: CloudState, request: WebRequest) -> Response:
    """Client credentials: a service principal's id and secret."""
    form = {name: values[0] for name, values in parse_qs(request.body.decode(errors="replace")).items()}
    if unknown := _unknown_tenant(cloud, request):
        return unknown
    if form.get("grant_type") != "client_credentials":
        return _failed(400, "unsupported_grant_type", "AADSTS70003: the twin knows client_credentials alone.")
    principal = cloud.principals.get(form.get("client_id", ""))
    if principal is None:
        message = f"AADSTS700016: Application with identifier '{form.get('client_id')}' was not found in the directory."
        return _failed(400, "unauthorized_client", message)
    if not hmac.compare_digest(principal.secret.encode(), form.get("client_secret", "").encode()):
        return _failed(401, "invalid_client", "AADSTS7000215: Invalid client secret provided.")
    audience = form.get("resource") or form.get("scope", "").removesuffix("/.default")
    issued = tokens.issue(cloud, principal.client_id, principal.object_id, audience, time.time())
    return Response(200, issued, {"Cache-Control": "no-store"})


def _unknown_tenant(cloud: CloudState, request: WebRequest) -> Response | None:
    tenant = request.path.strip("/").split("/")[0].lower()
    if tenant in (cloud.tenant, "common", "organizations"):
        return None
    return _failed(400, "invalid_tenant", f"AADSTS90002: Tenant '{tenant}' not found.")


def _failed(status: int, error: str, message: str) -> Response:
    number = message.partition(":")[0].removeprefix("AADSTS")
    return Response(status, {"error": error, "error_description": message, "error_codes": [int(number)]})


def _openid(cloud: CloudState, request: WebRequest) -> Response:
    if unknown := _unknown_tenant(cloud, request):
        return unknown
    root = f"{request.base}/{cloud.tenant}"
    told = {
        "issuer": f"{root}/v2.0",
        "authorization_endpoint": f"{root}/oauth2/v2.0/authorize",
        "token_endpoint": f"{root}/oauth2/v2.0/token",
        "device_authorization_endpoint": f"{root}/oauth2/v2.0/devicecode",
        "jwks_uri": f"{root}/discovery/v2.0/keys",
        "response_types_supported": ["code", "token"],
        "subject_types_supported": ["pairwise"],
        "id_token_signing_alg_values_supported": ["HS256"],
        "tenant_region_scope": "EU",
    }
    return Response(200, told)


def _discovery(cloud: CloudState, request: WebRequest) -> dict[str, Any]:
    host = request.base.removeprefix("https://")
    place = f"{request.base}/{cloud.tenant}/v2.0/.well-known/openid-configuration"
    entry = {"preferred_network": host, "preferred_cache": host, "aliases": [host]}
    return {"tenant_discovery_endpoint": place, "api-version": "1.1", "metadata": [entry]}


def _endpoints(cloud: CloudState, request: WebRequest) -> Any:
    """What `az cloud register --endpoint-resource-manager` reads: an object, but a list in one version."""
    base = request.base
    told = {
        "name": "StokerTwin",
        "resourceManager": f"{base}/",
        "portal": base,
        "authentication": {
            "loginEndpoint": f"{base}/",
            "audiences": [f"{base}/", base],
            "tenant": cloud.tenant,
            "identityProvider": "AAD",
        },
        "gallery": base,
        "graph": base,
        "graphAudience": base,
        "microsoftGraphResourceId": f"{base}/",
        "galleryEndpoint": base,
        "vmImageAliasDoc": f"{base}/metadata/aliases.json",
        "media": base,
        "batch": base,
        "suffixes": {
            "storage": blobs.suffix(base),
            "keyVaultDns": "vault.azure.net",
            "sqlServerHostname": "database.windows.net",
        },
    }
    return [told] if request.query.get("api-version") == "2019-05-01" else told


def _aliases() -> dict[str, Any]:
    named = {
        name: {
            "publisher": image.publisher,
            "offer": image.offer,
            "sku": image.sku,
            "version": "latest",
            "architecture": image.architecture,
        }
        for name, image in catalog.ALIASES.items()
    }
    return {"outputs": {"aliases": {"type": "object", "value": {"Linux": named}}}}


_MEANT = re.compile(
    r"(servicePrincipalNames/any\(c:c|displayName|appId)\s+eq\s+'([^']*)'|startswith\(displayName,'([^']*)'\)"
)


def answer_graph(cloud: CloudState, request: WebRequest, unix_now: float) -> Response:
    """`servicePrincipals`, `users` and `directoryObjects/getByIds`, read-only."""
    try:
        tokens.read(cloud, request.headers.get("authorization", ""), unix_now)
    except Refused as refusal:
        return _login_refused(refusal.status, refusal.code, refusal.message)
    words = [word for word in request.path.split("/") if word][1:]
    known = [_one(person) for person in people(cloud)]
    match [words[0].lower() if words else "", *words[1:]]:
        case ["serviceprincipals"] if request.method == "GET":
            return Response(200, {"value": _meant(known, request.query.get("$filter", ""))})
        case ["serviceprincipals", id] if request.method == "GET":
            found = [one for one in known if one["id"] == id]
            return (
                Response(200, found[0])
                if found
                else _login_refused(404, "Request_ResourceNotFound", f"{id} does not exist")
            )
        case ["users" | "groups"] if request.method == "GET":
            return Response(200, {"value": []})
        case ["directoryobjects", "getByIds"] if request.method == "POST":
            ids = set(json.loads(request.body or b"{}").get("ids") or ())
            return Response(200, {"value": [one for one in known if one["id"] in ids]})
    nearest = "servicePrincipals, users and directoryObjects/getByIds, read-only"
    message = f"the twin does not support {request.method} {request.path} of Microsoft Graph; it supports {nearest}"
    return _login_refused(404, "Request_ResourceNotFound", message)


def _one(person: Person) -> dict[str, Any]:
    kind, names = "#microsoft.graph.servicePrincipal", [person.client_id]
    told = {"@odata.type": kind, "id": person.object_id, "appId": person.client_id, "servicePrincipalNames": names}
    return {**told, "displayName": person.name}


def _meant(known: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if not text:
        return known
    words = {name.lower() for _, exact, start in _MEANT.findall(text) if (name := exact or start)}
    return [one for one in known if words & {str(one["appId"]).lower(), str(one["displayName"]).lower()}]


def _login_refused(status: int, code: str, message: str) -> Response:
    return Response(status, {"error": {"code": code, "message": message}})


log = logging.getLogger("stoker.twin")

_THROTTLED_S = 2


class Application:
    """A callable that handles requests. `log` contains the newest of them, for tests and for people."""

    def __init__(self, world: TwinWorld, control_token: str, blob: BlobService | None = None) -> None:
        self._world = world
        self._log: deque[dict[str, Any]] = deque(maxlen=10_000)
        self._control = TwinControl(world, control_token, self._log, blob)
        self._blob = blob
        self._lock = threading.Lock()

    def __call__(self, request: WebRequest) -> Response:
        first = request.path.strip("/").split("/")[0].lower()
        if first == "twin":
            return self._control(request)
        if first == "api":
            return retail.answer(self._world.cloud, request, self._world.clock.now(), self._world.clock.wall)
        if first == "v1.0":
            return answer_graph(self._world.cloud, request, time.time())
        if (answer := answer_login(self._world.cloud, request)) is not None:
            return answer
        if history.belongs(request.path):
            return self._learning(request)
        response = self._arm(request)
        with self._lock:
            told = {"method": request.method, "path": request.path, "query": dict(request.query)}
            self._log.append({**told, "status": response.status})
        return response

    def _arm(self, request: WebRequest) -> Response:
        trouble = self._world.change(lambda cloud, _: _trouble(cloud, request))
        if trouble.kind == "throttle":
            return _refused(throttled(max(1, int(self._world.clock.real_s(trouble.seconds))), request.path))
        if trouble.kind == "error":
            return _refused(Refused(trouble.status, trouble.code, trouble.message))
        response = self._answered(request, trouble.seconds if trouble.kind == "stall" else 0.0)
        match trouble.kind:
            case "slow":
                return replace(response, wait_s=self._world.clock.real_s(trouble.seconds))
            case "lose":
                return replace(response, lost=True)
            case "botch":
                return _refused(Refused(trouble.status, trouble.code, trouble.message))
            case "omit" if isinstance(response.body, dict) and "value" in response.body:
                return replace(response, body={**response.body, "value": []})
        return response

    def _learning(self, request: WebRequest) -> Response:
        try:
            return self._world.change(lambda cloud, now: history.answer(cloud, request, self._world.clock.wall(now)))
        except Refused as refusal:
            return _refused(refusal)

    def _answered(self, request: WebRequest, stalled_s: float) -> Response:
        def decided(cloud: CloudState, now: float) -> tuple[CloudState, ArmAnswer]:
            after, answer = self._decided(cloud, request, now)
            begun = [one for key, one in after.operations.items() if stalled_s and key not in cloud.operations]
            for operation in begun:
                after = after.put_operation(replace(operation, due_at=operation.due_at + stalled_s))
            return after, answer

        try:
            answer = self._world.change(decided)
        except Refused as refusal:
            return _refused(refusal)
        if self._blob and request.method in ("PUT", "POST") and NAMESPACE.lower() in request.path.lower():
            self._blob.settle()
        return Response(answer.status, answer.body, {**answer.headers, **_LEFT})

    def _decided(self, cloud: CloudState, request: WebRequest, now: float) -> tuple[CloudState, ArmAnswer]:
        claims = tokens.read(cloud, request.headers.get("authorization", ""), time.time())
        target = ids.read(request.path)
        ask = Ask(
            method=request.method,
            path=request.path,
            target=target,
            now=now,
            wall=self._world.clock.wall,
            query=request.query,
            body=_body(request),
            claims=claims,
            base=request.base,
            number=cloud.requests,
        )
        return dispatch.answer(cloud, ask)


_LEFT = {"x-ms-ratelimit-remaining-subscription-reads": "11999"}


def _trouble(cloud: CloudState, request: WebRequest) -> tuple[CloudState, weather.OrderedFault]:
    """The fault of this request: one ordered by a test, else the weather's."""
    number = cloud.requests + 1
    fault, left = weather.take(cloud.faults, weather.ANSWERS, request.method, request.path)
    if fault is None:
        word = cloud.weather.trouble(number)
        fault = weather.OrderedFault(word, seconds=cloud.weather.slow_s if word == "slow" else _THROTTLED_S)
    return replace(cloud, requests=number, faults=left), fault


def _body(request: WebRequest) -> dict[str, Any]:
    if not request.body:
        return {}
    try:
        body = odata.loads(request.body.decode())
    except ValueError as error:
        raise invalid(
            f"The request content was invalid and could not be deserialized: '{error}'.", "InvalidRequestContent"
        ) from error
    if not isinstance(body, dict):
        raise invalid("The request content was invalid: expected an object.", "InvalidRequestContent")
    return body


def _refused(refusal: Refused) -> Response:
    headers = {"x-ms-failure-cause": "gateway", **refusal.headers}
    return Response(refusal.status, {"error": refusal.body()}, headers)

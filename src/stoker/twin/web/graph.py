"""The little of Microsoft Graph that Azure's clients ask for before they speak of roles: who has which id."""

from __future__ import annotations

import json
import re
from typing import Any

from stoker.twin.access import tokens
from stoker.twin.access.tokens import Person, people
from stoker.twin.refusal import Refused
from stoker.twin.state import Cloud
from stoker.twin.web.server import Request, Response

_MEANT = re.compile(
    r"(servicePrincipalNames/any\(c:c|displayName|appId)\s+eq\s+'([^']*)'|startswith\(displayName,'([^']*)'\)"
)


def answer(cloud: Cloud, request: Request, unix_now: float) -> Response:
    """`servicePrincipals`, `users` and `directoryObjects/getByIds`, for reading."""
    try:
        tokens.read(cloud, request.headers.get("authorization", ""), unix_now)
    except Refused as refusal:
        return _refused(refusal.status, refusal.code, refusal.message)
    words = [word for word in request.path.split("/") if word][1:]
    known = [_one(person) for person in people(cloud)]
    match [words[0].lower() if words else "", *words[1:]]:
        case ["serviceprincipals"] if request.method == "GET":
            return Response(200, {"value": _meant(known, request.query.get("$filter", ""))})
        case ["serviceprincipals", id] if request.method == "GET":
            found = [one for one in known if one["id"] == id]
            return (
                Response(200, found[0]) if found else _refused(404, "Request_ResourceNotFound", f"{id} does not exist")
            )
        case ["users" | "groups"] if request.method == "GET":
            return Response(200, {"value": []})
        case ["directoryobjects", "getByIds"] if request.method == "POST":
            ids = set(json.loads(request.body or b"{}").get("ids") or ())
            return Response(200, {"value": [one for one in known if one["id"] in ids]})
    nearest = "servicePrincipals, users and directoryObjects/getByIds, for reading"
    message = f"the twin has no {request.method} {request.path} of Microsoft Graph; it has {nearest}"
    return _refused(404, "Request_ResourceNotFound", message)


def _one(person: Person) -> dict[str, Any]:
    kind, names = "#microsoft.graph.servicePrincipal", [person.client_id]
    told = {"@odata.type": kind, "id": person.object_id, "appId": person.client_id, "servicePrincipalNames": names}
    return {**told, "displayName": person.name}


def _meant(known: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if not text:
        return known
    words = {name.lower() for _, exact, start in _MEANT.findall(text) if (name := exact or start)}
    return [one for one in known if words & {str(one["appId"]).lower(), str(one["displayName"]).lower()}]


def _refused(status: int, code: str, message: str) -> Response:
    return Response(status, {"error": {"code": code, "message": message}})

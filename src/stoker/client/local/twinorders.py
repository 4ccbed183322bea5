"""Requests to a running twin, through the twin's own API."""

from __future__ import annotations

import json
from typing import Any

from stoker.errors import AzuriteMissing, Conflict, TwinFailed

Told = dict[str, Any]  # the twin's description in `twin.json`

_BLOB_S = 90.0


def blob(told: Told) -> dict[str, str]:
    """Starts the twin's Blob service, and returns its address. Raises AzuriteMissing if it cannot start."""
    return ask(told, "blob", {}, timeout_s=_BLOB_S)


def evict(told: Told, node: str, notice_s: float, *, withdrawn: bool = False) -> None:
    """Evicts the machine of a node, as the cloud does: its metadata service delivers the notice."""
    machines = [one["vm"] for one in ask(told, "status")["machines"] if node in one["tags"].values()]
    if not machines:
        raise Conflict(f"the twin has no machine for node {node}", hint="stoker twin status")
    ask(told, "evict", {"vm": machines[0], "notice_s": notice_s, "withdrawn": withdrawn})


def person(told: Told, name: str) -> dict[str, str]:
    """A user who can log in: their object id, which roles are assigned to, and their login. Again: the same user, with
    another secret."""
    import secrets  # as below

    secret = secrets.token_urlsafe(24)
    made = ask(told, "principal", {"name": name, "secret": secret})
    login = {
        "AZURE_TENANT_ID": str(told["tenant"]),
        "AZURE_CLIENT_ID": str(made["client_id"]),
        "AZURE_CLIENT_SECRET": secret,
    }
    return {"object_id": str(made["object_id"]), **login}


def ask(told: Told, word: str, order: dict[str, Any] | None = None, *, timeout_s: float = 10.0) -> dict[str, Any]:
    """A request to the twin's own API."""
    import ssl  # 20 ms, and rarely used
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    body = None if order is None else json.dumps(order).encode()
    context = ssl.create_default_context(cafile=told["authority"])
    request = Request(f"{told['url']}/twin/{word}", body, {"Authorization": f"Bearer {told['token']}"})
    try:
        with urlopen(request, context=context, timeout=timeout_s) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except HTTPError as error:
        raise _refused(error.read()) from error
    except (URLError, OSError, ValueError) as error:
        raise TwinFailed(f"the twin at {told['url']} does not respond: {error}", hint="stoker twin down") from error


def _refused(answer: bytes) -> TwinFailed:
    try:
        said = json.loads(answer)["error"]
    except (ValueError, LookupError, TypeError):
        said = {}
    kind = AzuriteMissing if said.get("code") == AzuriteMissing.code else TwinFailed
    return kind(said.get("message") or "the twin refused the request", hint=said.get("hint", ""))

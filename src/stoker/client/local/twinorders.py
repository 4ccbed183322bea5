"""What a client asks and orders of a running twin, through the twin's own API."""

from __future__ import annotations

import json
from typing import Any

from stoker.errors import AzuriteMissing, Conflict, TwinFailed

Told = dict[str, Any]  # what the twin says of itself in `twin.json`

_BLOB_S = 90.0


def blob(told: Told) -> dict[str, str]:
    """Has the twin start its Blob service, and tells where it is. Raises AzuriteMissing where it cannot."""
    return ask(told, "blob", {}, timeout_s=_BLOB_S)


def evict(told: Told, node: str, notice_s: float, *, withdrawn: bool = False) -> None:
    """Takes the machine of a node away, from the cloud's side: the metadata service inside it gives the notice."""
    machines = [one["vm"] for one in ask(told, "status")["machines"] if node in one["tags"].values()]
    if not machines:
        raise Conflict(f"the twin has no machine of the node {node}", hint="stoker twin status")
    ask(told, "evict", {"vm": machines[0], "notice_s": notice_s, "withdrawn": withdrawn})


def person(told: Told, name: str) -> dict[str, str]:
    """Somebody who can log in: their object id, which roles are given to, and what they log in with. Again: the same
    person, with another secret."""
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
    """A question to the twin's own API, or an order."""
    import ssl  # 20 ms, for a command that few use
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
        raise TwinFailed(f"the twin at {told['url']} does not answer: {error}", hint="stoker twin down") from error


def _refused(answer: bytes) -> TwinFailed:
    try:
        said = json.loads(answer)["error"]
    except (ValueError, LookupError, TypeError):
        said = {}
    kind = AzuriteMissing if said.get("code") == AzuriteMissing.code else TwinFailed
    return kind(said.get("message") or "the twin refuses", hint=said.get("hint", ""))

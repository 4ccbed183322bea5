"""Containers of the Blob service, with the account's own key: the only requests that the twin sends to it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from email.utils import formatdate
from http.client import HTTPConnection, HTTPException

from stoker.errors import TwinFailed

_VERSION = "2021-12-02"
_TIMEOUT_S = 10.0
_MADE, _THERE, _TOLD, _GOING, _GONE = 201, 409, 200, 202, 404
_NAMES = re.compile(rb"<Container><Name>([^<]+)</Name>")


def make(port: int, account: str, key: str, container: str) -> None:
    """An existing one is fine."""
    status, _ = _ask("PUT", port, account, key, f"/{container}", {"restype": "container"})
    if status not in (_MADE, _THERE):
        raise TwinFailed(f"the Blob service did not create the container {container} of {account}: {status}")


def clear(port: int, account: str, key: str) -> None:
    """Removes all containers of an account, as Azure does when the account is deleted."""
    status, told = _ask("GET", port, account, key, "/", {"comp": "list"})
    if status != _TOLD:
        raise TwinFailed(f"the Blob service did not list the containers of {account}: {status}")
    for name in _NAMES.findall(told):
        status, _ = _ask("DELETE", port, account, key, f"/{name.decode()}", {"restype": "container"})
        if status not in (_GOING, _GONE):
            raise TwinFailed(f"the Blob service did not delete the container {name.decode()} of {account}: {status}")


def _ask(method: str, port: int, account: str, key: str, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {account}:{_signature(method, account, key, path, query, headers)}"
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        words = "&".join(f"{name}={value}" for name, value in query.items())
        connection.request(method, f"/{account}{path}?{words}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException) as error:
        raise TwinFailed(f"the Blob service does not answer: {error}") from error
    finally:
        connection.close()


def _signature(method: str, account: str, key: str, path: str, query: dict[str, str], headers: dict[str, str]) -> str:
    """Shared Key: the method, eleven empty headers, Azure's own headers, and the resource."""
    own = "".join(f"{name}:{headers[name]}\n" for name in ("x-ms-date", "x-ms-version"))
    # The account appears twice: an emulator has it in the path, too.
    asked = f"/{account}/{account}{path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    text = f"{method}\n" + "\n" * 11 + own + asked
    return base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()

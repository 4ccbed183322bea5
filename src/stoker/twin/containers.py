"""Making a container in the Blob service, as the owner of its account: the one request the twin sends to it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from email.utils import formatdate
from http.client import HTTPConnection, HTTPException

from stoker.errors import TwinFailed

_VERSION = "2021-12-02"
_TIMEOUT_S = 10.0
_MADE, _THERE = 201, 409


def make(port: int, account: str, key: str, container: str) -> None:
    """One that is there is fine."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION, "Content-Length": "0"}
    headers["Authorization"] = f"SharedKey {account}:{_signature(account, key, container, headers)}"
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("PUT", f"/{account}/{container}?restype=container", headers=headers)
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        raise TwinFailed(f"the Blob service does not answer: {error}") from error
    finally:
        connection.close()
    if status not in (_MADE, _THERE):
        raise TwinFailed(f"the Blob service does not make the container {container} of {account}: {status}")


def _signature(account: str, key: str, container: str, headers: dict[str, str]) -> str:
    """Shared Key: the method, eleven headers that are empty here, those of Azure's own, and what is asked for."""
    own = "".join(f"{name}:{headers[name]}\n" for name in ("x-ms-date", "x-ms-version"))
    # The account stands twice: an emulator has it in the path, too.
    asked = f"/{account}/{account}/{container}\nrestype:container"
    text = "PUT\n" + "\n" * 11 + own + asked
    return base64.b64encode(hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)).decode()

"""An Azure token of the current login: a service principal, what azure-identity finds, or the Azure CLI."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from stoker.errors import StoreDenied
from stoker.stores.credential import Credential
from stoker.stores.objects.wire import Request, Wire

_SCOPE = "https://storage.azure.com/.default"
_AUTHORITY = "https://login.microsoftonline.com"
_EARLY_S = 300.0  # a token is renewed this long before it expires
_HINT = "log in with `az login`, or set tenant, client and secret of a service principal"


class Login:
    """Requests a token once, and again shortly before it expires. Thread-safe."""

    def __init__(self, credential: Credential) -> None:
        self._values = credential.values
        self._authority = credential.values.get("authority", _AUTHORITY)
        self._lock = threading.Lock()
        self._token = ""
        self.expires_at = 0.0

    def token(self) -> str:
        """Raises StoreDenied without a login."""
        with self._lock:
            if time.time() > self.expires_at - _EARLY_S:
                self._token, self.expires_at = self._ask()
            return self._token

    def _ask(self) -> tuple[str, float]:
        if self._values.get("secret"):
            return self._principal()
        return _identity(self._values) or _command()

    def _principal(self) -> tuple[str, float]:
        fields = {"client_id": self._values["client"], "client_secret": self._values["secret"]}
        body = urlencode({**fields, "grant_type": "client_credentials", "scope": _SCOPE}).encode()
        target = f"/{self._values['tenant']}/oauth2/v2.0/token"
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        wire = Wire(self._authority, ca_file=self._values.get("ca_file", ""))
        reply = wire.ask(lambda: Request("POST", target, form, body))
        found = json.loads(reply.body or b"{}")
        if "access_token" not in found:
            said = str(found.get("error_description", f"status {reply.status}")).splitlines()[0]
            raise StoreDenied(f"the login of the service principal failed: {said}", hint=_HINT)
        return str(found["access_token"]), time.time() + float(found.get("expires_in", 3600))


def _identity(values: Mapping[str, str]) -> tuple[str, float] | None:
    """With its own authority where one is named, which the public Azure does not confirm."""
    try:
        identity = importlib.import_module("azure.identity")  # where the user has it; slow to load
    except ImportError:
        return None
    own: dict[str, Any] = {}
    if authority := values.get("authority"):
        own = {"authority": authority, "disable_instance_discovery": True}
    if ca_file := values.get("ca_file"):
        own["connection_verify"] = ca_file
    try:
        found = identity.DefaultAzureCredential(**own).get_token(_SCOPE)
    except Exception as error:  # every kind of login has its own errors
        raise StoreDenied(f"not logged in to Azure: {str(error).splitlines()[0]}", hint=_HINT) from error
    return str(found.token), float(found.expires_on)


def _command() -> tuple[str, float]:
    az = shutil.which("az")
    if not az:
        raise StoreDenied("not logged in to Azure: found neither azure-identity nor the Azure CLI", hint=_HINT)
    argv = [az, "account", "get-access-token", "--resource", "https://storage.azure.com/", "--output", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise StoreDenied(
            f"the Azure CLI has no token: {(done.stderr.strip() or 'no output').splitlines()[-1]}", hint=_HINT
        )
    found = json.loads(done.stdout)
    return str(found["accessToken"]), float(found.get("expires_on") or time.time() + 1800)

"""The login of a VM for Azure Container Registry: its identity, in exchange for a token of the registry. The identity
needs the role `AcrPull`, and to push `AcrPush`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from urllib.parse import quote, urlencode

SUFFIXES = (".azurecr.io", ".azurecr.cn", ".azurecr.us")
ANYBODY = "00000000-0000-0000-0000-000000000000"  # the user of all tokens
TOKEN = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01&resource="  # a URL
AUDIENCE = "https://management.azure.com/"
_WITHIN_S = 30.0


def registry_login(registry: str, token_url: str = TOKEN, scheme: str = "https") -> tuple[str, str] | None:
    """None: it is not Azure's, or the VM has no identity that it accepts; the image may be public all the same."""
    if not registry.partition(":")[0].endswith(SUFFIXES) and scheme == "https":
        return None
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the address is link-local
        asked = urllib.request.Request(token_url + quote(AUDIENCE, safe=""), headers={"Metadata": "true"})
        with direct.open(asked, timeout=_WITHIN_S) as answer:
            own = json.load(answer)["access_token"]
        words = {"grant_type": "access_token", "service": registry, "access_token": own}
        exchanged = urllib.request.Request(f"{scheme}://{registry}/oauth2/exchange", urlencode(words).encode())
        with urllib.request.urlopen(exchanged, timeout=_WITHIN_S) as answer:
            return ANYBODY, str(json.load(answer)["refresh_token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

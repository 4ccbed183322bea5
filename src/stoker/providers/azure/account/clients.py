"""The login to Azure and the clients of the official SDKs, created at first use, with errors translated.

A role assignment takes minutes to apply everywhere, so a login that was just given access may still be refused.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from stoker.errors import NotAllowed, NotSetUp, ProviderUnavailable
from stoker.providers.azure.account.account import PUBLIC_LOGIN, Account
from stoker.providers.azure.account.recording import ReplayCredential
from stoker.providers.azure.refusals import translated

# The SDKs log every request with its headers.
logging.getLogger("azure").setLevel(logging.WARNING)

_LOGIN_S = 60  # for the Azure CLI to give a token: on a busy computer, starting it takes longer than the usual 10 s
POLL_S = 5.0  # where Azure sends no Retry-After
# For a POST that may be repeated without harm: by default, the SDKs do not repeat one whose response was lost.
REPEATABLE = frozenset(["HEAD", "GET", "PUT", "DELETE", "POST"])


class Clients:
    """Importing the SDKs takes a second, and most servers never need them."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def log_in_again(self) -> None:
        """The next request uses a new login and reads its file again."""
        for name in ("_credential", "_resources", "_deployments", "_compute", "_authorization"):
            self.__dict__.pop(name, None)

    def get(self, id: str, api: str) -> dict[str, Any] | None:
        """A resource as Azure sends it; None where it does not exist."""
        with speaking(f"looking for {last_word(id)}"):
            try:
                found: dict[str, Any] = self._resources.resources.get_by_id(id.lstrip("/"), api_version=api).as_dict()
            except missing_error():
                return None
            return found

    def put_by_id(self, id: str, api: str, body: Mapping[str, Any]) -> None:
        """Returns when the resource exists."""
        with speaking(f"creating {last_word(id)}"):
            asked = self._resources.resources.begin_create_or_update_by_id(
                id.lstrip("/"), dict(body), api_version=api, polling_interval=POLL_S
            )
            asked.result()

    def delete_by_id(self, id: str, api: str) -> None:
        """Returns when the resource is deleted. A missing one is fine."""
        with speaking(f"deleting {last_word(id)}"), suppress(missing_error()):
            asked = self._resources.resources.begin_delete_by_id(
                id.lstrip("/"), api_version=api, polling_interval=POLL_S
            )
            asked.result()

    def me(self) -> str:
        """The object id of the current login, from its token."""
        with speaking("checking who is logged in"):
            token = self._credential.get_token(f"{self._account.arm.rstrip('/')}/.default").token
        body = token.split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))).get("oid", ""))

    @cached_property
    def _resources(self) -> Any:
        from azure.mgmt.resource.resources import ResourceManagementClient

        return self._client(ResourceManagementClient)

    @cached_property
    def _deployments(self) -> Any:
        from azure.mgmt.resource.deployments import DeploymentsMgmtClient

        return self._client(DeploymentsMgmtClient)

    @cached_property
    def _compute(self) -> Any:
        from azure.mgmt.compute import ComputeManagementClient

        return self._client(ComputeManagementClient)

    @cached_property
    def _authorization(self) -> Any:
        from azure.mgmt.authorization import AuthorizationManagementClient

        return self._client(AuthorizationManagementClient)

    def _client(self, make: Callable[..., Any]) -> Any:
        given = {"base_url": self._account.arm, "credential_scopes": [f"{self._account.arm.rstrip('/')}/.default"]}
        return make(self._credential, self._account.subscription, **given, transport=self._transport)

    @cached_property
    def _transport(self) -> Any:
        from stoker.providers.azure.account.transport import transport  # requires packages of the SDKs

        return transport(self._account)

    @cached_property
    def _credential(self) -> Any:
        from azure.identity import ClientSecretCredential, DefaultAzureCredential

        account = self._account
        if account.replay:
            return ReplayCredential()
        verify = {"connection_verify": account.ca_file} if account.ca_file else {}
        # A private Azure is not among the authorities that the public one confirms.
        own = {"authority": account.login, "disable_instance_discovery": account.login != PUBLIC_LOGIN}
        if not account.secret_file:
            return DefaultAzureCredential(**own, **verify, process_timeout=_LOGIN_S)
        secret = Path(account.secret_file).read_text(encoding="utf-8").strip()
        return ClientSecretCredential(account.tenant, account.client, secret, **own, **verify)


@contextmanager
def speaking(doing: str) -> Iterator[None]:
    try:
        from azure.core.exceptions import AzureError
    except ImportError:
        raise NotSetUp("the Azure SDKs are not installed", hint="pip install 'stoker[azure]'") from None
    try:
        yield
    except AzureError as error:
        raise translated(error, doing) from error


def missing_error() -> type[Exception]:
    from azure.core.exceptions import ResourceNotFoundError

    missing: type[Exception] = ResourceNotFoundError
    return missing


def last_word(id: str) -> str:
    return id.rsplit("/", 1)[-1]


PATIENCE_S = 300.0  # the longest that Azure documents


class Spreading:
    """At first, a refusal of a login with access counts as unavailable, so that the request is retried."""

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._refused_at: float | None = None  # the first time since something was last allowed

    @contextmanager
    def waiting(self) -> Iterator[None]:
        try:
            yield
        except NotAllowed as error:
            if self._refused_at is None:
                self._refused_at = self._steady()
            if self._steady() - self._refused_at >= PATIENCE_S:
                raise
            why = f"{error.message}; a new role assignment takes some minutes to apply"
            raise ProviderUnavailable(why, hint=error.hint) from error
        self._refused_at = None

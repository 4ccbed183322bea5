"""The kind `azure`: containers of Azure Blob. Standard library only at import: agents carry this file."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote, urlsplit

from stoker.stores import Store
from stoker.stores.access import NOTHING, Access, Credential, MountFolders, MountPlan, MountProgram, Route, rclone
from stoker.stores.kinds import CredentialForm, Grant, Location, StoreKind, check_credential, inner_prefix

ACCOUNT_KEY, SAS, CONNECTION_STRING, LOGIN = "account-key", "sas", "connection-string", "login"
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*|\$root|\$web")
_SAFE = "/:@!$&'()*+,;=~"
_TO_SPLIT = "use the account's key (`--key`) or a login (`--login`), and each node gets a token for its own run"


def _is_connection_string(text: str) -> bool:
    return any(word in text for word in ("AccountName=", "SharedAccessSignature=", "UseDevelopmentStorage="))


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) >= 32
    except (binascii.Error, ValueError):
        return False


class AzureKind(StoreKind):
    name = "azure"
    schemes = ("az", "abfs", "azure", "http", "https")
    forms = ("az://ACCOUNT/CONTAINER[/PREFIX]", "https://ACCOUNT.blob.core.windows.net/CONTAINER[/PREFIX]")
    carried = ("stoker.stores.azure.client",)
    credentials = (
        CredentialForm(
            CONNECTION_STRING,
            ("text",),
            "--connection-string",
            "Open it with a connection string of Azure.",
            "connection string",
            lambda text: {"text": text},
            _is_connection_string,
        ),
        CredentialForm(
            SAS,
            ("token",),
            "--sas",
            "Open it with a shared access signature (SAS) of Azure.",
            "SAS token",
            lambda text: {"token": text.removeprefix("?")},
            lambda text: "sig=" in text,
        ),
        CredentialForm(
            ACCOUNT_KEY,
            ("key",),
            "--key",
            "Open it with the key of an Azure storage account.",
            "account key",
            lambda text: {"key": text},
            _is_key,
        ),
        # Without a secret: the login of this machine. The authority and its certificate are those of an Azure that is
        # not the public one.
        CredentialForm(LOGIN, ("?tenant", "?client", "?secret", "?authority", "?ca_file")),
    )
    advice: Mapping[str, str] = {
        "write": "allow writing: Storage Blob Data Contributor, or `c` and `w` in a SAS",
        "list": "allow listing: the role Storage Blob Data Contributor, or `l` in a SAS",
        "read": "allow reading: Storage Blob Data Reader, or `r` in a SAS",
        "run folder": "allow creating containers: Storage Blob Data Contributor, or the key",
        "delete": "allow deleting: Storage Blob Data Contributor, or `d` in a SAS",
    }

    def locate(self, url: str) -> Location:
        parts = urlsplit(url)
        host = parts.netloc.split("@")[-1]
        if parts.scheme.lower() not in ("http", "https"):
            return self._in_account(f"https://{host}.blob.core.windows.net", host, parts.path, parts.query)
        place = f"{parts.scheme}://{host}"
        if ".blob." in (parts.hostname or ""):
            return self._in_account(place, (parts.hostname or "").split(".")[0], parts.path, parts.query)
        account, _, path = parts.path.lstrip("/").partition("/")  # an emulator, or a proxy: the account is in the path
        return self._in_account(f"{place}/{account}", account, path, parts.query)

    def _in_account(self, endpoint: str, account: str, path: str, query: str) -> Location:
        if query:
            raise ValueError("it contains a token or settings; pass a SAS as the credential instead")
        if not _ACCOUNT.fullmatch(account):
            raise ValueError(f"`{account}` is not a valid storage account name")
        container, _, prefix = unquote(path.lstrip("/")).partition("/")
        if not _CONTAINER.fullmatch(container):
            raise ValueError(f"`{container}` is not a valid container name (3 to 63 of a-z, 0-9 and single -)")
        return Location(self.name, endpoint, account, container, inner_prefix(prefix))

    def spell(self, location: Location) -> str:
        path = quote(location.prefix.removesuffix("/"), safe=_SAFE)
        return f"{location.endpoint}/{location.container}" + (f"/{path}" if path else "")

    def endpoint(self, location: Location) -> str:
        return location.endpoint

    def open(self, location: Location, credential: Credential) -> Store:
        from stoker.stores.azure.opening import open_azure  # obstore is too slow to load for most commands

        check_credential(location, credential)
        return open_azure(location, credential)

    def open_route(self, route: Route, place: Location) -> Store:
        return self.open(place, Credential(SAS, {"token": route.token}) if route.token else NOTHING)

    def open_on_node(self, route: Route, place: Location) -> Store:
        from stoker.stores.azure.client import open_blobs  # http takes 20 ms, and local agents do not need it

        return open_blobs(place, route.token)

    def grant(self, location: Location, credential: Credential, part: Grant) -> Access:
        from stoker.stores.azure.rights import grant_azure  # as for `open`

        check_credential(location, credential)
        return grant_azure(location, credential, reads=part.reads, writes=part.writes, for_s=part.for_s)

    def unsplit(self, location: Location, credential: Credential) -> str:
        from stoker.stores.azure.rights import rights  # as for `open`

        return "" if rights(location, credential)[1].splits else _TO_SPLIT

    def expires_at(self, credential: Credential) -> float:
        from stoker.stores.azure.client import sas_expires_at  # as for `open`

        return sas_expires_at(credential.values["token"]) if credential.kind == SAS else 0.0

    def mounts(self) -> Sequence[MountProgram]:
        return (MountProgram("rclone", self._rclone), MountProgram("blobfuse2", self._blobfuse2))

    def _rclone(self, program: str, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
        place = self.locate(route.url)
        remote = f"{place.container}/{place.prefix}"
        settings = {"TYPE": "azureblob", "SAS_URL": f"{place.endpoint}/{place.container}?{route.token.lstrip('?')}"}
        return rclone(program, remote, settings, folders, blocks_bytes)

    def _blobfuse2(self, program: str, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
        place = self.locate(route.url)
        words = [
            "--read-only",
            "--foreground",
            "--block-cache",
            f"--block-cache-path={folders.blocks}",
            f"--block-cache-disk-size={max(blocks_bytes >> 20, 64)}",
            "--attr-cache-timeout=3600",
            "--log-level=log_warning",
            "--log-type=base",
            f"--log-file-path={folders.blocks}.log",
        ]
        if place.prefix:
            words.append(f"--subdirectory={place.prefix.rstrip('/')}")
        env = {
            "AZURE_STORAGE_ACCOUNT": place.account,
            "AZURE_STORAGE_BLOB_ENDPOINT": place.endpoint,
            "AZURE_STORAGE_ACCOUNT_CONTAINER": place.container,
            "AZURE_STORAGE_SAS_TOKEN": route.token,
            "AZURE_STORAGE_AUTH_TYPE": "sas",
        }
        return MountPlan((program, "mount", str(folders.place), *words), env)

"""Where a store is, read from its URL. Standard library only: agents carry this file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qs, quote, unquote, urlsplit

from stoker.errors import BadInput
from stoker.stores.access import Access, Route
from stoker.stores.credential import NOTHING, Credential

_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*|\$root|\$web")
_BUCKET = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]")
_FORMS = "file:///FOLDER, az://ACCOUNT/CONTAINER[/PREFIX], https://ACCOUNT.blob.core.windows.net/CONTAINER[/PREFIX] or \
s3://BUCKET[/PREFIX]"


class StoreKind(StrEnum):
    FOLDER = "folder"
    AZURE = "azure"
    S3 = "s3"


@dataclass(frozen=True, slots=True)
class Location:
    """`endpoint` is what container or bucket names are put behind; `prefix` ends with `/` unless it is empty.
    For a folder only `prefix` is set: the path."""

    kind: StoreKind
    endpoint: str = ""
    account: str = ""
    container: str = ""
    prefix: str = ""
    region: str = ""

    @property
    def url(self) -> str:
        """The same place in its one full form, without a secret."""
        path = quote(self.prefix.removesuffix("/"), safe="/:@!$&'()*+,;=~")
        if self.kind is StoreKind.FOLDER:
            return f"file://{path}"
        if self.kind is StoreKind.AZURE:
            return f"{self.endpoint}/{self.container}" + (f"/{path}" if path else "")
        settings = [
            f"{name}={value}" for name, value in (("endpoint", self.endpoint), ("region", self.region)) if value
        ]
        return f"s3://{self.container}" + (f"/{path}" if path else "") + (f"?{'&'.join(settings)}" if settings else "")


def locate(url: str) -> Location:
    """Raises BadInput, in words, for a URL that is no store's. Text that is no URL is the path of a folder."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    try:
        if scheme in ("", "file"):
            return _folder(url)
        if scheme in ("az", "abfs", "azure"):
            return _short_azure(url)
        if scheme in ("http", "https"):
            return _azure(url)
        if scheme in ("s3", "s3a"):
            return _s3(url)
    except ValueError as error:
        raise BadInput(f"`{without_secrets(url)}` is not the URL of a store: {error}", hint=f"write {_FORMS}") from None
    raise BadInput(f"no store has URLs that begin with `{scheme}://`", hint=f"write {_FORMS}")


def without_secrets(url: str) -> str:
    """A URL fit for a message: signatures and passwords are cut off."""
    address, _, query = url.partition("?")
    kept = "&".join(part for part in query.split("&") if part.startswith(("endpoint=", "region=")))
    return re.sub(r"//[^/@]*@", "//", address) + (f"?{kept}" if kept else "")


def _folder(url: str) -> Location:
    path = unquote(urlsplit(url).path) if "://" in url else url
    if not path.startswith("/"):
        raise ValueError("the path of a folder begins with `/`")
    return Location(StoreKind.FOLDER, prefix=path.rstrip("/") or "/")


def _short_azure(url: str) -> Location:
    parts = urlsplit(url)
    account = parts.netloc.split("@")[-1]
    return _in_account(f"https://{account}.blob.core.windows.net", account, parts.path, parts.query)


def _azure(url: str) -> Location:
    parts = urlsplit(url)
    host = parts.hostname or ""
    place = f"{parts.scheme}://{parts.netloc.split('@')[-1]}"
    if ".blob." in host:
        return _in_account(place, host.split(".")[0], parts.path, parts.query)
    account, _, path = parts.path.lstrip("/").partition("/")  # an emulator, or a proxy: the account is in the path
    return _in_account(f"{place}/{account}", account, path, parts.query)


def _in_account(endpoint: str, account: str, path: str, query: str) -> Location:
    if query:
        raise ValueError("it holds a token, or settings; give a SAS as the credential instead")
    if not _ACCOUNT.fullmatch(account):
        raise ValueError(f"`{account}` is no name of a storage account")
    container, _, prefix = unquote(path.lstrip("/")).partition("/")
    if not _CONTAINER.fullmatch(container):
        raise ValueError(f"`{container}` is no name of a container (3 to 63 of a-z, 0-9 and single -)")
    return Location(StoreKind.AZURE, endpoint, account, container, _prefix(prefix))


def _s3(url: str) -> Location:
    parts = urlsplit(url)
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError(f"`{parts.netloc}` is no name of a bucket")
    settings = (
        {name: values[-1] for name, values in parse_qs(parts.query, strict_parsing=True).items()} if parts.query else {}
    )
    if unknown := set(settings) - {"endpoint", "region"}:
        raise ValueError(f"`{sorted(unknown)[0]}` is no setting of a bucket; there are endpoint and region")
    endpoint = settings.get("endpoint", "").rstrip("/")
    if endpoint and not re.fullmatch(r"https?://[^/@]+(/.*)?", endpoint):
        raise ValueError(f"the endpoint `{endpoint}` is no http address")
    return Location(StoreKind.S3, endpoint, "", parts.netloc, _prefix(unquote(parts.path)), settings.get("region", ""))


def _prefix(path: str) -> str:
    names = path.strip("/").split("/") if path.strip("/") else []
    if any(name in ("", ".", "..") for name in names) or "\0" in path:
        raise ValueError(f"`{path}` is not a path inside it")
    return "".join(f"{name}/" for name in names)


# Gives a node or a client a part of a store, for a while: only what it may read and write, never the credential.


def grant(
    store_url: str, credential: Credential | None, *, reads: Sequence[str], writes: Sequence[str], for_s: float
) -> Access:
    """`reads` and `writes` are prefixes of keys, such as `runs/<id>/`; what may be written may be read and listed too.
    What does not end with `/` is the key of one object, to be read and not listed.

    On Azure a token is for one blob or for a container: `containers` says which keys share one.
    Raises StoreDenied, in words, where the credential cannot be split into something narrower.
    """
    location = locate(store_url)
    if location.kind is StoreKind.FOLDER:
        return Access(tuple(_folder_route(location.prefix, prefix, prefix in writes) for prefix in _all(reads, writes)))
    if location.kind is StoreKind.AZURE:
        from stoker.stores.azure.sas import grant_azure

        return grant_azure(location, credential or NOTHING, reads=reads, writes=writes, for_s=for_s)
    from stoker.stores.s3.sts import grant_s3

    return grant_s3(location, credential or NOTHING, reads=reads, writes=writes, for_s=for_s)


def splits(store_url: str, credential: Credential) -> bool:
    """Whether a part of the store can be given, rather than the credential itself."""
    location = locate(store_url)
    if location.kind is not StoreKind.AZURE:
        return True
    from stoker.stores.azure.rights import rights

    return rights(location, credential)[1].splits


def _all(reads: Sequence[str], writes: Sequence[str]) -> list[str]:
    return sorted({*reads, *writes})


def _folder_route(root: str, prefix: str, writes: bool) -> Route:
    place = f"{root.rstrip('/')}/{prefix}".rstrip("/") or "/"
    return Route(prefix, locate(place).url, "", writes)

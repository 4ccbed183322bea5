"""The kind `gcs`: buckets of Google Cloud Storage. Standard library only at import: agents carry this file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote, urlsplit

from stoker.errors import BadInput
from stoker.stores import Store
from stoker.stores.access import Access, Credential, MountFolders, MountPlan, MountProgram, Route, rclone
from stoker.stores.kinds import (
    CredentialForm,
    Grant,
    Location,
    StoreKind,
    check_credential,
    inner_prefix,
    url_settings,
)

SERVICE = "https://storage.googleapis.com"
SERVICE_ACCOUNT, LOGIN = "service-account", "login"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_SAFE = "/:@!$&'()*+,;=~"


def _account_values(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
        return {name: str(found[name]) for name in ("client_email", "private_key", "token_uri")}
    except (ValueError, KeyError, TypeError):
        raise BadInput("this is not the JSON key of a service account") from None


class GcsKind(StoreKind):
    name = "gcs"
    schemes = ("gs", "gcs")
    forms = ("gs://BUCKET[/PREFIX]",)
    carried = ("stoker.stores.gcs.client",)
    grants_prefixes = True
    credentials = (
        CredentialForm(
            SERVICE_ACCOUNT,
            ("client_email", "private_key", "token_uri"),
            "--service-account",
            "Open it with the JSON key of a Google Cloud service account.",
            "JSON key of a service account",
            _account_values,
            lambda text: "private_key" in text,
        ),
        CredentialForm(LOGIN),
    )
    advice: Mapping[str, str] = {
        "write": "allow writing: the role Storage Object User (`roles/storage.objectUser`)",
        "list": "allow listing: the role Storage Object Viewer (`roles/storage.objectViewer`)",
        "read": "allow reading: the role Storage Object Viewer (`roles/storage.objectViewer`)",
        "run folder": "allow writing: the role Storage Object User (`roles/storage.objectUser`)",
        "delete": "allow deleting: the role Storage Object User (`roles/storage.objectUser`)",
    }

    def locate(self, url: str) -> Location:
        parts = urlsplit(url)
        if not _BUCKET.fullmatch(parts.netloc):
            raise ValueError(f"`{parts.netloc}` is not a valid bucket name")
        settings = url_settings(parts.query, "endpoint")
        return Location(self.name, settings["endpoint"], "", parts.netloc, inner_prefix(unquote(parts.path)))

    def spell(self, location: Location) -> str:
        path = quote(location.prefix.removesuffix("/"), safe=_SAFE)
        settings = f"?endpoint={location.endpoint}" if location.endpoint else ""
        return f"gs://{location.container}" + (f"/{path}" if path else "") + settings

    def endpoint(self, location: Location) -> str:
        return location.endpoint or SERVICE

    def open(self, location: Location, credential: Credential) -> Store:
        from stoker.stores.gcs.opening import open_gcs  # obstore is too slow to load for most commands
        from stoker.stores.gcs.tokens import Tokens

        check_credential(location, credential)
        return open_gcs(location, Tokens(credential))

    def open_route(self, route: Route, place: Location) -> Store:
        from stoker.stores.gcs.opening import open_gcs  # as for `open`

        return open_gcs(place, route.token)

    def open_on_node(self, route: Route, place: Location) -> Store:
        from stoker.stores.gcs.client import open_bucket  # HTTP costs a local agent 20 ms, which it does not need

        return open_bucket(place, lambda: route.token)

    def grant(self, location: Location, credential: Credential, part: Grant) -> Access:
        from stoker.stores.gcs.tokens import grant_gcs  # as for `open`

        check_credential(location, credential)
        return grant_gcs(location, credential, part)

    def mounts(self) -> Sequence[MountProgram]:
        return (MountProgram("rclone", self._rclone),)

    def _rclone(self, program: str, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
        place = self.locate(route.url)
        settings = {
            "TYPE": "google cloud storage",
            "ACCESS_TOKEN": route.token,
            "ANONYMOUS": "" if route.token else "true",
            "ENDPOINT": f"{place.endpoint}/storage/v1/" if place.endpoint else "",
        }
        return rclone(program, f"{place.container}/{place.prefix}", settings, folders, blocks_bytes)

"""The kind `s3`: buckets of Amazon and of others. Standard library only at import: agents carry this file."""

from __future__ import annotations

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

S3_KEY, LOGIN = "s3-key", "login"
_BUCKET = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{1,61}[a-zA-Z0-9]")
_SAFE = "/:@!$&'()*+,;=~"


def _key_values(text: str) -> dict[str, str]:
    parts = text.replace("\n", ":").split(":")
    if len(parts) not in (2, 3) or not all(parts):
        raise BadInput("expected an access key id and its secret, with a `:` or a new line between them")
    return dict(zip(("id", "secret", "session"), parts, strict=False))


class S3Kind(StoreKind):
    name = "s3"
    schemes = ("s3", "s3a")
    forms = ("s3://BUCKET[/PREFIX][?endpoint=URL&region=NAME]",)
    carried = ("stoker.stores.s3.client",)
    grants_prefixes = True
    credentials = (
        CredentialForm(
            S3_KEY,
            ("id", "secret", "?session", "?role"),  # role: the ARN to assume for nodes
            "--s3-key",
            "Open it with an access key id and secret of S3, as ID:SECRET.",
            "access key id and secret access key, with a `:` between them",
            _key_values,
            lambda _text: True,
        ),
        CredentialForm(LOGIN),
    )
    advice: Mapping[str, str] = {
        "write": "allow `s3:PutObject` on the bucket's objects",
        "list": "allow `s3:ListBucket` on the bucket",
        "read": "allow `s3:GetObject` on the bucket's objects",
        "run folder": "allow `s3:PutObject` on the bucket's objects",
        "delete": "allow `s3:DeleteObject` on the bucket's objects",
    }

    def locate(self, url: str) -> Location:
        parts = urlsplit(url)
        if not _BUCKET.fullmatch(parts.netloc):
            raise ValueError(f"`{parts.netloc}` is not a valid bucket name")
        settings = url_settings(parts.query, "endpoint", "region")
        prefix = inner_prefix(unquote(parts.path))
        return Location(self.name, settings["endpoint"], "", parts.netloc, prefix, settings["region"])

    def spell(self, location: Location) -> str:
        path = quote(location.prefix.removesuffix("/"), safe=_SAFE)
        known = (("endpoint", location.endpoint), ("region", location.region))
        settings = "&".join(f"{name}={value}" for name, value in known if value)
        return f"s3://{location.container}" + (f"/{path}" if path else "") + (f"?{settings}" if settings else "")

    def endpoint(self, location: Location) -> str:
        return location.endpoint or f"https://s3.{location.region or 'us-east-1'}.amazonaws.com"

    def open(self, location: Location, credential: Credential) -> Store:
        from stoker.stores.s3.opening import open_s3  # obstore is too slow to load for most commands

        check_credential(location, credential)
        return open_s3(location, credential)

    def open_route(self, route: Route, place: Location) -> Store:
        from stoker.stores.s3.client import keys_from_text  # as for `open`

        keys = keys_from_text(route.token)
        return self.open(place, Credential(S3_KEY, {"id": keys.id, "secret": keys.secret, "session": keys.session}))

    def open_on_node(self, route: Route, place: Location) -> Store:
        from stoker.stores.s3.client import open_bucket  # http takes 20 ms, and local agents do not need it

        return open_bucket(place, route.token)

    def grant(self, location: Location, credential: Credential, part: Grant) -> Access:
        from stoker.stores.s3.client import grant_s3  # as for `open`

        check_credential(location, credential)
        return grant_s3(location, credential, reads=part.reads, writes=part.writes, for_s=part.for_s)

    def mounts(self) -> Sequence[MountProgram]:
        return (MountProgram("rclone", self._rclone),)

    def _rclone(self, program: str, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
        from stoker.stores.s3.client import (
            Keys,
            keys_from_text,  # as for `open_on_node`
        )

        place = self.locate(route.url)
        keys = keys_from_text(route.token) if route.token else Keys("", "")
        settings = {
            "TYPE": "s3",
            "PROVIDER": "Other" if place.endpoint else "AWS",
            "ENDPOINT": place.endpoint,
            "REGION": place.region,
            "ACCESS_KEY_ID": keys.id,
            "SECRET_ACCESS_KEY": keys.secret,
            "SESSION_TOKEN": keys.session,
        }
        return rclone(program, f"{place.container}/{place.prefix}", settings, folders, blocks_bytes)

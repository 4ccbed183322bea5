"""What a registry says of an image before a machine is requested for it: whether it exists, for whom, and for which
processors."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

from stoker.client.settings import ClientSettings
from stoker.errors import JobInvalid, Problem
from stoker.files import write_whole
from stoker.model.job.job import Job

USUAL = "amd64"  # the processors of clouds, unless a size is named
_WITHIN_S = 5.0
_MOST_BYTES = 4 << 20
_HUB, _HUB_HOST = "docker.io", "registry-1.docker.io"
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE | re.MULTILINE)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


def check_images(job: Job, root: Path, settings: ClientSettings, secrets: Mapping[str, str]) -> tuple[str, ...]:
    """For machines that do not have the images yet. Returns what is worth knowing. Raises JobInvalid where no machine
    could use one. What a registry does not say is left to the machine."""
    wanted, notes = job.environment, []
    field = "image" if wanted.image else "dockerfile"
    for image in [wanted.image] if wanted.image else _bases(root / str(wanted.dockerfile)):
        place = _place(image)
        own = not wanted.registry or _place(wanted.registry)[0] == place[0]
        login = secrets.get(wanted.login or "", "") if own else ""
        try:
            found = _Registry(*place[:2], login).architectures(place[2], settings.home.software)
        except _Refused as refused:
            if refused.status == 404 or login:
                named = "login" if refused.status != 404 else field
                raise JobInvalid([Problem(f"environment.{named}", f"`{image}`", refused.meaning)]) from None
            notes.append(f"`{image}`: {refused.meaning}")
            continue
        except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
            notes.append(f"`{image}` was not checked: its registry does not answer here ({error})")
            continue
        if found and USUAL not in found:
            what = f"an image for {USUAL}: this one is for {', '.join(found)}"
            if not job.size:
                raise JobInvalid([Problem(f"environment.{field}", f"`{image}`", what)])
            notes.append(f"`{image}` is for {', '.join(found)} only: check that `{job.size}` is, too")
    return tuple(notes)


def _bases(dockerfile: Path) -> Iterator[str]:
    """Images that it builds on: not its own stages, and none whose name is an argument."""
    stages = {"scratch"}
    try:
        text = dockerfile.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for image, stage in _FROM.findall(text):
        if image.lower() not in stages and "$" not in image:
            yield image
        stages.add(stage.lower())


def _place(image: str) -> tuple[str, str, str]:
    """Host, repository, and tag or digest."""
    first, slash, rest = image.partition("/")
    if not (slash and (set(first) & set(".:") or first == "localhost")):
        first, rest = _HUB, image if slash else f"library/{image}"
    name, _, digest = rest.partition("@")
    repository, colon, tag = name.rpartition(":")
    repository, tag = (repository, tag) if colon else (name, "latest")
    return _HUB_HOST if first == _HUB else first, repository, digest or tag


@dataclass(frozen=True, slots=True)
class _Refused(Exception):
    status: int
    meaning: str


class _NoToken(urllib.request.HTTPRedirectHandler):
    """Contents are often elsewhere, and whoever has them must not get the token."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            found.remove_header("Authorization")
        return found


class _Registry:
    """One repository of a registry."""

    def __init__(self, host: str, repository: str, login: str) -> None:
        near = host.partition(":")[0] in ("localhost", "127.0.0.1")
        self._url = f"{'http' if near else 'https'}://{host}/v2/{repository}"
        self._hides = host == _HUB_HOST
        self._basic = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
        self._authorization = ""
        self._open = urllib.request.build_opener(_NoToken).open

    def architectures(self, reference: str, kept: Path) -> list[str]:
        """Empty where it does not say. Those of a digest never change, and registries count what is read."""
        _, digest = self._ask(f"manifests/{reference}", "HEAD")
        file = kept / f"{digest.removeprefix('sha256:')}.image"
        known = re.fullmatch(r"sha256:[0-9a-f]{64}", digest) is not None
        with suppress(OSError, ValueError):
            if known:
                return [str(one) for one in json.loads(file.read_text())]
        found = list(dict.fromkeys(self._read(json.loads(self._ask(f"manifests/{reference}")[0]))))
        if known:
            kept.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(found).encode())
        return found

    def _read(self, manifest: Any) -> Iterator[str]:
        if "config" in manifest:
            yield str(json.loads(self._ask(f"blobs/{manifest['config']['digest']}")[0])["architecture"])
        for one in manifest.get("manifests") or ():
            platform = one.get("platform") or {}
            if platform.get("os") == "linux":
                yield str(platform["architecture"])

    def _ask(self, path: str, method: str = "GET") -> tuple[bytes, str]:
        for again in (True, False):
            headers = {"Accept": ", ".join(_KINDS), **self._given()}
            asked = urllib.request.Request(f"{self._url}/{path}", headers=headers, method=method)
            try:
                with self._open(asked, timeout=_WITHIN_S) as answer:
                    return answer.read(_MOST_BYTES), answer.headers.get("Docker-Content-Digest", "")
            except urllib.error.HTTPError as error:
                if error.code == 401 and again and self._proves(error.headers.get("WWW-Authenticate", "")):
                    continue
                raise self._refused(error.code) from None
        raise AssertionError("unreachable")

    def _given(self) -> dict[str, str]:
        return {"Authorization": self._authorization} if self._authorization else {}

    def _proves(self, challenge: str) -> bool:
        """Whether there is something to prove, with the login or as anybody."""
        if challenge.lower().startswith("basic"):
            self._authorization = self._basic
            return bool(self._basic)
        said = dict(_CHALLENGE.findall(challenge))
        if "realm" not in said:
            return False
        query = urlencode({name: said[name] for name in ("service", "scope") if name in said})
        asked = urllib.request.Request(f"{said['realm']}?{query}")
        if self._basic:
            asked.add_header("Authorization", self._basic)
        try:
            with self._open(asked, timeout=_WITHIN_S) as answer:
                told = json.loads(answer.read(_MOST_BYTES))
        except urllib.error.HTTPError as error:
            raise self._refused(error.code) from None
        self._authorization = f"Bearer {told.get('token') or told['access_token']}"
        return True

    def _refused(self, status: int) -> _Refused:
        if status == 404:
            return _Refused(status, "an image that its registry has")
        if status in (401, 403):
            hidden = "the registry does not have it, or asks for" if self._hides else "the registry asks for"
            other = "another login than this one" if self._basic else "a login: name a secret as `environment.login`"
            return _Refused(status, f"{hidden} {other}")
        raise OSError(f"status {status}")

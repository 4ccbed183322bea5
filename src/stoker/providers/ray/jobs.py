"""Ray's REST API of jobs, with the standard library: nothing of Ray has to be installed where runs are submitted."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from stoker.errors import LoginFailed, NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.providers import surroundings

ANSWER_S = 20.0  # for a head that is busy
OLDEST = (2, 40)  # what its driver uses is there since
OVER = frozenset({"STOPPED", "SUCCEEDED", "FAILED"})
_SAID = "stoker: "  # as the driver writes it
_READ_ONLY = re.compile(r"node_[0-9a-f]{40,}")  # what Ray calls a type of nodes where no autoscaler makes them
_AWAY = ("No available agent", "GetTimeoutError", "RpcError", "timed out", "Timed out")


@dataclass(frozen=True, slots=True)
class RayNode:
    """One node of an attempt, as the driver of its job sees it."""

    state: str
    words: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class RayJob:
    id: str
    status: str
    message: str = ""
    nodes: Mapping[str, RayNode] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.status in OVER


@dataclass(frozen=True, slots=True)
class RayCluster:
    """What its nodes have, each by the name of the resource. `grows`: an autoscaler makes more."""

    nodes: Sequence[Mapping[str, float]]
    grows: bool


class RayJobs:
    """Of one cluster. Called from several threads."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._is_known = False

    def check(self) -> None:
        """Raises NotSetUp where this is not a Ray that can be used."""
        if self._is_known:
            return
        try:
            version = str(self._ask("GET", "/api/version")["ray_version"])
        except (KeyError, TypeError):
            raise NotSetUp(f"{self.address} is not the dashboard of a Ray cluster", hint=_HINT) from None
        found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if found < OLDEST:
            needed = ".".join(map(str, OLDEST))
            raise NotSetUp(f"the cluster at {self.address} has Ray {version}: Stoker requires Ray {needed} or newer")
        self._is_known = True

    def all(self) -> list[RayJob]:
        """One request, whatever the number of jobs."""
        found = self._ask("GET", "/api/jobs/")
        return [_job(one) for one in found if one.get("submission_id")]

    def one(self, id: str) -> RayJob | None:
        found = self._ask("GET", f"/api/jobs/{id}", missing=True)
        return _job(found) if found else None

    def submit(self, id: str, entrypoint: str, metadata: Mapping[str, str]) -> None:
        """Once for each id: Ray refuses it the second time, which is fine."""
        asked = {"submission_id": id, "entrypoint": entrypoint, "metadata": dict(metadata)}
        try:
            self._ask("POST", "/api/jobs/", json.dumps(asked).encode())
        except ProviderUnavailable:
            raise
        except ProviderFailed as error:
            if "already exists" not in error.message:
                raise

    def put(self, name: str, data: bytes) -> None:
        """In the memory of the cluster's head."""
        self._ask("PUT", f"/api/packages/gcs/{quote(name)}", data)

    def clear(self, name: str) -> None:
        """Ray has no request that removes it, so it becomes empty; a driver that has read it has removed it."""
        if self._ask("GET", f"/api/packages/gcs/{quote(name)}", missing=True) is not None:
            self.put(name, b"")

    def stop(self, id: str) -> None:
        self._ask("POST", f"/api/jobs/{id}/stop", b"", missing=True)

    def delete(self, id: str) -> None:
        self._ask("DELETE", f"/api/jobs/{id}", missing=True)

    def cluster(self) -> RayCluster:
        said = self._ask("GET", "/api/cluster_status")
        try:
            status = said["data"]["clusterStatus"]
            nodes = [has for has, count in status["loadMetricsReport"]["nodeTypes"] for _ in range(int(count))]
            types = (status["autoscalerReport"] or {}).get("nodeTypeMapping") or {}
        except (KeyError, TypeError, ValueError):
            return RayCluster((), grows=True)  # the head has just started, or says it in another form
        return RayCluster(nodes, grows=not types or not all(_READ_ONLY.fullmatch(str(one)) for one in types.values()))

    def _ask(self, method: str, path: str, data: bytes | None = None, *, missing: bool = False) -> Any:
        """`missing`: None where there is no such thing."""
        kind = "application/octet-stream" if method == "PUT" else "application/json"
        headers = {"Content-Type": kind, **_headers(surroundings({}))}
        try:
            request = urllib.request.Request(self.address + path, data=data, method=method, headers=headers)
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                said = cast(bytes, answer.read())
        except urllib.error.HTTPError as error:
            if missing and error.code == 404:
                return None
            raise self._refusal(error) from None
        except (OSError, HTTPException) as error:
            why = getattr(error, "reason", error)
            raise ProviderUnavailable(f"the Ray cluster at {self.address} does not answer: {why}", hint=_HINT) from None
        try:
            return json.loads(said) if said else {}
        except ValueError:
            raise NotSetUp(f"{self.address} is not the dashboard of a Ray cluster", hint=_HINT) from None

    def _refusal(self, error: urllib.error.HTTPError) -> ProviderFailed:
        said = error.read(4000).decode(errors="replace").strip()
        last = said.splitlines()[-1][:500] if said else str(error.reason)
        if error.code in (401, 403):
            hint = "set RAY_AUTH_TOKEN, or write the token to ~/.ray/auth_token, where Stoker's server runs"
            return LoginFailed(f"the Ray cluster at {self.address} refuses the login: {last}", hint=hint)
        if error.code == 404:
            return NotSetUp(f"{self.address} is not the dashboard of a Ray cluster", hint=_HINT)
        if error.code in (429, 502, 503, 504) or any(one in said for one in _AWAY):
            return ProviderUnavailable(f"the Ray cluster at {self.address} is away: {last}", hint=_HINT)
        return ProviderFailed(f"Ray refused: {last}")


_HINT = "give the address of its dashboard, such as http://HOST:8265, and try it with `curl HTTP://ADDRESS/api/version`"


def _headers(variables: Mapping[str, str]) -> dict[str, str]:
    """As Ray's own command has them: of a proxy in front of the cluster, and its token."""
    found: dict[str, str] = {}
    try:
        found.update(json.loads(variables.get("RAY_JOB_HEADERS", "") or "{}"))
    except (ValueError, TypeError):
        raise NotSetUp(
            "RAY_JOB_HEADERS is not a JSON object", hint='as in RAY_JOB_HEADERS=\'{"name": "value"}\''
        ) from None
    if token := _token(variables):
        found["Authorization"] = f"Bearer {token}"
    return found


def _token(variables: Mapping[str, str]) -> str:
    if said := variables.get("RAY_AUTH_TOKEN", "").strip():
        return said
    place = variables.get("RAY_AUTH_TOKEN_PATH") or str(Path(variables.get("HOME", "~"), ".ray", "auth_token"))
    try:
        return Path(place).expanduser().read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _job(found: Mapping[str, Any]) -> RayJob:
    message = str(found.get("message") or "")
    return RayJob(str(found["submission_id"]), str(found["status"]), message, _nodes(message))


def _nodes(message: str) -> dict[str, RayNode]:
    """What the driver has said last: as the message itself, or at the end of a failed job's log."""
    lines = [line for line in message.splitlines() if line.startswith(_SAID)]
    try:
        said = json.loads(lines[-1].removeprefix(_SAID)) if lines else {}
        return {str(key): RayNode(*(str(part) for part in known)) for key, known in said.items()}
    except (ValueError, TypeError, AttributeError):
        return {}

"""A Kubernetes cluster over its REST interface, with the standard library: nothing has to be installed."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any, cast
from urllib.parse import quote, urlencode

from stoker.errors import (
    Conflict,
    LoginFailed,
    NotAllowed,
    NotSetUp,
    ProviderFailed,
    ProviderUnavailable,
    QuotaReached,
)
from stoker.providers import surroundings
from stoker.providers.kubernetes.kubeconfig import HINT, KubeLogin, read_login

ANSWER_S = 20.0  # for an API server that is busy
PAGE = 500
TRIES = 3  # every request may be repeated
MOST_WAIT_S = 3.0  # between them, whatever the API server says
_BUSY = (429, 500, 502, 503, 504)
_PATHS = {
    "jobs": "apis/batch/v1",
    "pods": "api/v1",
    "secrets": "api/v1",
    "services": "api/v1",
    "events": "api/v1",
}
Found = dict[str, Any]


class KubeCluster:
    """One context of the kubeconfig. Called from several threads."""

    def __init__(self, context: str) -> None:
        self.context = context
        self._lock = threading.Lock()
        self._login: KubeLogin | None = None
        self._opener: urllib.request.OpenerDirector | None = None
        self._ahead_s = 0.0  # its clock, of ours

    @property
    def namespace(self) -> str:
        return self._logged_in()[0].namespace

    def now(self) -> datetime:
        """By its own clock, to a second."""
        return datetime.fromtimestamp(time.time() + self._ahead_s, UTC)

    def version(self) -> tuple[int, int]:
        found = self.ask("GET", "version") or {}
        parts = [re.match(r"\d+", str(found.get(name, ""))) for name in ("major", "minor")]
        if not all(parts):
            raise NotSetUp(f"{self._logged_in()[0].server} is not the API server of a Kubernetes cluster", hint=HINT)
        major, minor = (int(one[0]) for one in parts if one)
        return major, minor

    def get(self, kind: str, namespace: str, name: str) -> Found | None:
        return cast(Found | None, self.ask("GET", _place(kind, namespace, name), missing=True))

    def list(self, kind: str, namespace: str, selector: str = "", fields: str = "") -> Iterator[Found]:
        """In pages, so that no answer is large. A list that has become too old begins anew."""
        query = {"labelSelector": selector, "fieldSelector": fields, "limit": str(PAGE)}
        place, found, more = _place(kind, namespace), list[Found](), ""
        while True:
            words = {name: value for name, value in {**query, "continue": more}.items() if value}
            page = self.ask("GET", f"{place}?{urlencode(words)}", missing=bool(more))
            if page is None:  # 410: it has expired
                found, more = [], ""
                continue
            found += page.get("items") or []
            if not (more := str((page.get("metadata") or {}).get("continue") or "")):
                return iter(found)

    def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Found:
        """The one that is there, where it was created before."""
        try:
            return cast(Found, self.ask("POST", _place(kind, namespace), body))
        except Conflict:
            if found := self.get(kind, namespace, body["metadata"]["name"]):
                return found
            raise ProviderUnavailable(f"{kind} {body['metadata']['name']} is being removed") from None

    def patch(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> None:
        self.ask("PATCH", _place(kind, namespace, name), change, missing=True)

    def delete(self, kind: str, namespace: str, name: str, **options: Any) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", **options}
        self.ask("DELETE", _place(kind, namespace, name), body, missing=True)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, missing: bool = False) -> Any:
        """`missing`: None where there is no such thing. Raises Conflict where there is one already."""
        data = None if body is None else json.dumps(body).encode()
        expired = False
        for turn in range(TRIES):
            login, opener = self._logged_in(anew=expired)
            try:
                return self._sent(login, opener, method, path, data)
            except urllib.error.HTTPError as error:
                said = _said(error)
                if missing and error.code in (404, 410):
                    return None
                if error.code == 401 and not expired:  # a token lasts for an hour or less
                    expired = True
                    continue
                if error.code not in _BUSY or turn == TRIES - 1:
                    raise self._refusal(error.code, said) from None
                time.sleep(min(_after_s(error, turn), MOST_WAIT_S))
            except (OSError, HTTPException, ValueError) as error:
                if turn == TRIES - 1:
                    raise self._silence(login, error) from None
                time.sleep(0.1)
        raise self._refusal(401, {})

    def _sent(
        self, login: KubeLogin, opener: urllib.request.OpenerDirector, method: str, path: str, data: bytes | None
    ) -> Any:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind, "Accept": "application/json", "User-Agent": "stoker"}
        if login.token:
            headers["Authorization"] = f"Bearer {login.token}"
        request = urllib.request.Request(f"{login.server}/{path}", data=data, method=method, headers=headers)
        with opener.open(request, timeout=ANSWER_S) as answer:
            said = answer.read()
            if date := answer.headers.get("Date"):
                self._ahead_s = parsedate_to_datetime(date).timestamp() - time.time()
        return json.loads(said) if said else {}

    def _logged_in(self, *, anew: bool = False) -> tuple[KubeLogin, urllib.request.OpenerDirector]:
        with self._lock:
            if self._login is None or self._opener is None or anew:
                self._login = read_login(surroundings({}), self.context)
                handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=self._login.tls())]
                if self._login.proxy:
                    handlers.append(
                        urllib.request.ProxyHandler({"http": self._login.proxy, "https": self._login.proxy})
                    )
                self._opener = urllib.request.build_opener(*handlers)
            return self._login, self._opener

    def _silence(self, login: KubeLogin, error: Exception) -> ProviderFailed:
        why = getattr(error, "reason", error)
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            return NotSetUp(f"{login.server} is not the API server of a Kubernetes cluster", hint=HINT)
        if "CERTIFICATE_VERIFY_FAILED" in str(why):
            return LoginFailed(f"the certificate of {login.server} is not trusted: {why}", hint=HINT)
        return ProviderUnavailable(f"the Kubernetes cluster at {login.server} does not answer: {why}", hint=HINT)

    def _refusal(self, code: int, said: Mapping[str, Any]) -> ProviderFailed | Conflict:
        words = " ".join(str(said.get("message") or said.get("reason") or f"HTTP {code}").split())[:600]
        if code == 401:
            return LoginFailed(
                f"the Kubernetes cluster refuses the login: {words}", hint="log in again, as for kubectl"
            )
        if code == 403 and "exceeded quota" in words:
            return QuotaReached(f"Kubernetes refused: {words}", hint="`kubectl describe quota` lists the limits")
        if code == 403:
            hint = "the guide to Kubernetes lists the rights that Stoker needs"
            return NotAllowed(f"Kubernetes refused: {words}", hint=hint)
        if code == 404:
            return NotSetUp(f"Kubernetes refused: {words}", hint="`kubectl get namespaces` lists the namespaces")
        if code == 409:
            return Conflict(f"Kubernetes refused: {words}")
        if code in _BUSY:
            return ProviderUnavailable(
                f"the Kubernetes cluster is away: {words}", hint="try it with `kubectl get pods`"
            )
        return ProviderFailed(f"Kubernetes refused: {words}")


def _place(kind: str, namespace: str, name: str = "") -> str:
    """`kind` is plural, and has its group before it where that is none of Kubernetes' own."""
    group, _, plural = kind.rpartition("/")
    place = f"{f'apis/{group}' if group else _PATHS[plural]}/namespaces/{quote(namespace)}/{plural}"
    return f"{place}/{quote(name)}" if name else place


def _said(error: urllib.error.HTTPError) -> dict[str, Any]:
    """A `Status` of the API server, or whatever a proxy in front of it says."""
    text = error.read(20_000).decode(errors="replace")
    try:
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    except ValueError:
        return {"message": text.strip()[:300]}


def _after_s(error: urllib.error.HTTPError, turn: int) -> float:
    try:
        return float(error.headers.get("Retry-After") or 0.2 * 4**turn)
    except ValueError:
        return 1.0

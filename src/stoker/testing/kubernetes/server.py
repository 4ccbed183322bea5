"""The REST interface: paths, logins, rights, errors as a `Status`, lists in pages, and answers that get lost."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stoker.testing.kubernetes.objects import KubeObject, KubeObjects, KubeRefused, set_condition

PLURALS = {
    ("api", "v1"): ("pods", "secrets", "services", "events"),
    ("apis", "batch/v1"): ("jobs",),
    ("apis", "kueue.x-k8s.io/v1beta1"): ("localqueues", "workloads"),
}
_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


@dataclass
class KubeFault:
    """The next `times` requests whose method and path contain `what` get `code`. `lost`: they are carried out, and the
    answer is lost."""

    what: str
    code: int = 500
    times: int = 1
    lost: bool = False
    message: str = "etcdserver: request timed out"


class KubeServer:
    """`check` raises ValueError for an object that the official schema does not allow."""

    def __init__(
        self,
        objects: KubeObjects,
        check: Callable[[str, KubeObject], None],
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.objects, self._check = objects, check
        self.namespaces = {"default", "team"}
        self.nodes: Callable[[], list[KubeObject]] = list
        self.tokens: set[str] = set()  # empty: nobody has to log in
        self.forbidden: set[tuple[str, str]] = set()  # verbs and kinds
        self.faults: list[KubeFault] = []
        self.asked: list[str] = []
        self.kueue = False
        self.minor = 31
        self.most_jobs: int | None = None
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._http.daemon_threads = True
        if tls:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805  # `self` is each request's
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                given = json.loads(self.rfile.read(length)) if length else {}
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                code, said, lost = server._answer(self.command, self.path, token, given)
                if lost:
                    self.connection.close()
                    return
                data = json.dumps(said).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815  # names of the standard library

            def log_message(self, *words: object) -> None:
                pass

        return Handler

    def _answer(self, method: str, path: str, token: str, given: KubeObject) -> tuple[int, KubeObject, bool]:
        with self._lock:
            self.asked.append(f"{method} {path}")
            fault = next((one for one in self.faults if one.times and one.what in f"{method} {path}"), None)
            if fault:
                fault.times -= 1
        try:
            if fault and not fault.lost:
                raise KubeRefused(fault.code, "InternalError", fault.message)
            if self.tokens and token not in self.tokens:
                raise KubeRefused(401, "Unauthorized", "Unauthorized")
            found = self._ask(method, path, given)
            return 201 if method == "POST" else 200, found, bool(fault)
        except KubeRefused as error:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": error.code}
            return error.code, {**status, "reason": error.reason, "message": error.message}, False

    def _ask(self, method: str, path: str, given: KubeObject) -> KubeObject:
        url = urlsplit(path)
        parts, query = url.path.strip("/").split("/"), {name: one[0] for name, one in parse_qs(url.query).items()}
        if parts == ["version"]:
            return {"major": "1", "minor": str(self.minor), "gitVersion": f"v1.{self.minor}.0"}
        if parts == ["apis", "kueue.x-k8s.io"] and self.kueue:
            return {"kind": "APIGroup", "preferredVersion": {"version": "v1beta1"}}
        if parts[:2] == ["api", "v1"] and parts[2:3] in (["namespaces"], ["nodes"]) and len(parts) < 5:
            return self._whole(parts[2], parts[3:])
        at = 2 if parts[0] == "api" else 3
        group = "/".join(parts[1:at])
        if parts[at : at + 1] == ["namespaces"] and len(parts) >= at + 3:
            namespace, kind, rest = parts[at + 1], parts[at + 2], parts[at + 3 :]
            if kind in PLURALS.get((parts[0], group), ()) and (self.kueue or "kueue" not in group):
                return self._namespaced(method, group, namespace, kind, rest, query, given)
        raise KubeRefused(404, "NotFound", "the server could not find the requested resource")

    def _whole(self, kind: str, rest: list[str]) -> KubeObject:
        """Objects without a namespace."""
        self._check_rights("get" if rest else "list", kind, "")
        if kind == "nodes":
            return {"kind": "NodeList", "items": self.nodes()}
        found = [{"kind": "Namespace", "metadata": {"name": one}} for one in sorted(self.namespaces)]
        if not rest:
            return {"kind": "NamespaceList", "items": found}
        if rest[0] not in self.namespaces:
            raise KubeRefused(404, "NotFound", f'namespaces "{rest[0]}" not found')
        return found[sorted(self.namespaces).index(rest[0])]

    def _namespaced(
        self,
        method: str,
        group: str,
        namespace: str,
        kind: str,
        rest: list[str],
        query: Mapping[str, str],
        given: KubeObject,
    ) -> KubeObject:
        verb = _VERBS.get(method, "get" if rest else "list")
        self._check_rights(verb, "pods/eviction" if rest[1:] == ["eviction"] else kind, namespace, group)
        if verb == "list":
            return self._page(kind, namespace, query)
        if verb == "get":
            return self.objects.get(kind, namespace, rest[0])
        if verb == "patch":
            return self.objects.merge(kind, namespace, rest[0], given)
        if verb == "delete":
            self._checked("DeleteOptions", given)
            grace = given.get("gracePeriodSeconds")
            return self.objects.delete(kind, namespace, rest[0], grace, given.get("propagationPolicy", ""))
        if rest[1:] == ["eviction"]:
            return evict(self.objects, namespace, rest[0], "EvictionByEvictionAPI", "Eviction API: evicting")
        return self._create(kind, namespace, given)

    def _create(self, kind: str, namespace: str, given: KubeObject) -> KubeObject:
        if namespace not in self.namespaces:
            raise KubeRefused(404, "NotFound", f'namespaces "{namespace}" not found')
        self._checked(kind, given)
        if (
            kind == "jobs"
            and self.most_jobs is not None
            and len(self.objects.select("jobs", namespace)) >= self.most_jobs
        ):
            words = f"exceeded quota: team, requested: count/jobs.batch=1, used: count/jobs.batch={self.most_jobs}"
            raise KubeRefused(403, "Forbidden", f'jobs.batch "{given["metadata"]["name"]}" is forbidden: {words}')
        return self.objects.create(kind, namespace, given)

    def _checked(self, kind: str, given: KubeObject) -> None:
        try:
            self._check(kind, given)
        except ValueError as error:
            raise KubeRefused(422, "Invalid", f"{kind} is invalid: {error}") from None

    def _page(self, kind: str, namespace: str, query: Mapping[str, str]) -> KubeObject:
        found = self.objects.select(kind, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        first, size = int(query.get("continue") or 0), int(query.get("limit") or len(found) or 1)
        more = str(first + size) if first + size < len(found) else ""
        return {"kind": "List", "metadata": {"continue": more}, "items": found[first : first + size]}

    def _check_rights(self, verb: str, kind: str, namespace: str, group: str = "") -> None:
        if (verb, kind) in self.forbidden:
            group = group.rpartition("/")[0]
            words = f'cannot {verb} resource "{kind}" in API group "{group}"' + (
                f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
            )
            raise KubeRefused(403, "Forbidden", f'{kind} is forbidden: User "jane" {words}')


def evict(objects: KubeObjects, namespace: str, name: str, reason: str, message: str) -> KubeObject:
    """As whatever disrupts a pod does: its condition first, and then it is deleted with its grace period."""
    objects.change("pods", namespace, name, lambda one: set_condition(one, "DisruptionTarget", "True", reason, message))
    return objects.delete("pods", namespace, name)


def kubeconfig(url: str, cluster: Mapping[str, Any] | None = None, **user: Any) -> str:
    """Of a user in the namespace `team`; JSON is YAML. `cluster` is what is said of it besides its address."""
    cluster, chosen = {"server": url, **(cluster or {})}, {"cluster": "here", "user": "jane", "namespace": "team"}
    return json.dumps(
        {
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "contexts": [{"name": "here", "context": chosen}],
            "users": [{"name": "jane", "user": user}],
        }
    )

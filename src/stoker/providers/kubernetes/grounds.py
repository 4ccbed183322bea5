"""What a cluster must have for a job: a namespace, rights, a queue, GPUs. Asked for rarely, since it changes rarely."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from stoker.errors import JobInvalid, NotAllowed, NotSetUp, Problem, ProviderFailed, ProviderUnavailable
from stoker.model.job.fields import nearest
from stoker.model.node import Need
from stoker.providers.kubernetes import told
from stoker.providers.kubernetes.cluster import KubeCluster
from stoker.providers.kubernetes.wanted import PodWanted, models

FRESH_S = 60.0
OLDEST, OLDEST_GANG = (1, 25), (1, 29)  # where `backoffLimitPerIndex` is on by itself
KUEUE = "kueue.x-k8s.io"
_PRODUCT = "nvidia.com/gpu.product"


class KubeGrounds:
    """Called from several threads."""

    def __init__(self, cluster: Callable[[str], KubeCluster]) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._fine: dict[tuple[str, str, str, bool], float] = {}
        self._labels: dict[str, tuple[float, list[str]]] = {}  # of GPUs, by context
        self._kueue: dict[str, str] = {}  # the version of its interface, by context

    def checked(self, asked: PodWanted, need: Need) -> PodWanted | None:
        """With its namespace, and with what its nodes must be labelled. None: no node has such a GPU. Raises JobInvalid
        with the setting that does not fit the cluster."""
        cluster = self._cluster(asked.context)
        asked = replace(asked, namespace=asked.namespace or cluster.namespace)
        mark = asked.context, asked.namespace, asked.queue, need.nodes > 1
        with self._lock:
            is_fine = time.monotonic() - self._fine.get(mark, float("-inf")) < FRESH_S
        if not is_fine:
            _check_version(cluster, need.nodes)
            _check_namespace(cluster, asked.namespace)
            if asked.queue:
                self._check_queue(cluster, asked.namespace, asked.queue)
            with self._lock:
                self._fine[mark] = time.monotonic()
        if need.gpu and not asked.selector:
            labels = self._products(cluster)
            asked = replace(asked, models=models(labels, need.gpu))
            return asked if asked.models else None
        return asked

    def queued(self, cluster: KubeCluster, namespace: str, uid: str) -> tuple[str, bool]:
        """What Kueue says of a Job, and whether it has evicted it."""
        if not (version := self._version(cluster)):
            return "somebody suspended it", False
        said, evicted = told.queued(cluster.list(f"{KUEUE}/{version}/workloads", namespace), uid)
        return f"it waits in a queue of Kueue{f': {said}' if said else ''}", evicted

    def _version(self, cluster: KubeCluster) -> str:
        """Empty: there is no Kueue."""
        if cluster.context not in self._kueue:
            found = cluster.ask("GET", f"apis/{KUEUE}", missing=True) or {}
            self._kueue[cluster.context] = str((found.get("preferredVersion") or {}).get("version") or "")
        return self._kueue[cluster.context]

    def _check_queue(self, cluster: KubeCluster, namespace: str, queue: str) -> None:
        if not (version := self._version(cluster)):
            self._kueue.pop(cluster.context)
            raise JobInvalid([Problem("setting queue", f"`{queue}`", "nothing: this cluster has no Kueue")])
        kind = f"{KUEUE}/{version}/localqueues"
        try:
            known = [str(one["metadata"]["name"]) for one in cluster.list(kind, namespace)]
        except NotAllowed:
            return
        if queue not in known:
            expected = f"a LocalQueue of namespace {namespace}: " + (_named(known) or "it has none")
            raise JobInvalid([Problem("setting queue", f"`{queue}`", expected, nearest(queue, known))])

    def _products(self, cluster: KubeCluster) -> list[str]:
        """Labels of the cluster's nodes. Raises JobInvalid where nobody may or can read them."""
        read_at, labels = self._labels.get(cluster.context, (float("-inf"), []))
        if time.monotonic() - read_at > FRESH_S:
            try:
                nodes = (cluster.ask("GET", "api/v1/nodes") or {}).get("items") or []
            except NotAllowed:
                nodes = []
            found = ((one["metadata"].get("labels") or {}).get(_PRODUCT) for one in nodes)
            labels = sorted({str(one) for one in found if one})
            self._labels[cluster.context] = time.monotonic(), labels
        if not labels:
            expected = f"`gpus` alone, and `--setting selector=LABEL=VALUE`: no node shows a label `{_PRODUCT}`"
            raise JobInvalid([Problem("gpu", "a model of a GPU", expected)])
        return labels


def _check_version(cluster: KubeCluster, nodes: int) -> None:
    found, needed = cluster.version(), OLDEST_GANG if nodes > 1 else OLDEST
    if found < needed:
        have, oldest = (".".join(map(str, one)) for one in (found, needed))
        what = f"runs with {nodes} nodes require" if nodes > 1 else "Stoker requires"
        raise NotSetUp(f"the cluster has Kubernetes {have}: {what} {oldest} or newer")


def _check_namespace(cluster: KubeCluster, namespace: str) -> None:
    """A login that may only work in its namespace may read nothing about it."""
    try:
        if cluster.ask("GET", f"api/v1/namespaces/{namespace}", missing=True) is None:
            known = _names(cluster)
            expected = "a namespace of this cluster" + (f": {_named(known)}" if known else "")
            raise JobInvalid([Problem("setting namespace", f"`{namespace}`", expected, nearest(namespace, known))])
    except NotAllowed:
        pass
    cluster.ask("GET", f"apis/batch/v1/namespaces/{namespace}/jobs?limit=1")


def _names(cluster: KubeCluster) -> list[str]:
    try:
        found = (cluster.ask("GET", "api/v1/namespaces") or {}).get("items") or []
        return [str(one["metadata"]["name"]) for one in found]
    except ProviderUnavailable:
        raise
    except ProviderFailed:
        return []


def _named(known: Iterable[str]) -> str:
    return ", ".join(f"`{one}`" for one in known)

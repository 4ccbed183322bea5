"""Nodes of a Kubernetes cluster: an Indexed Job for each attempt, each of whose pods runs an agent. Kubernetes owns the
nodes, and its scheduler, or Kueue, the queue."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from stoker.agent.pack import pack
from stoker.errors import NameTaken, NotSetUp, ProviderFailed, ProviderUnavailable
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer
from stoker.providers import Setup, surroundings
from stoker.providers.allocations import Allocation, Allocations, GangGathering
from stoker.providers.kubernetes import kubeconfig, manifests, told
from stoker.providers.kubernetes.cluster import Found, KubeCluster
from stoker.providers.kubernetes.grounds import KubeGrounds
from stoker.providers.kubernetes.told import JobTold, PodTold
from stoker.providers.kubernetes.wanted import GRACE_S, PodWanted, wanted
from stoker.stores.access import Access

_OVER_S = 20.0  # for what was deleted to be gone
_KILL_S = 1  # from SIGTERM to SIGKILL of a node that nobody needs
_EVENTS_S = 5.0  # between looks at why a Job has no pods
_LEAST_CHANGE_S = 60.0  # of a lease


@dataclass(frozen=True, slots=True)
class ClusterTold:
    """One look at a namespace: Jobs by name, and pods by the name of their Job."""

    jobs: dict[str, Found] = field(default_factory=dict)
    pods: dict[str, dict[int, PodTold]] = field(default_factory=dict)


class KubernetesProvider:
    # Folders are those of claims, which are mounted under the same path as here.
    features: ClassVar[Features] = Features(
        notice_s=float(GRACE_S),
        overstay_s=20.0,
        containers=True,
        own_queue=True,
        carries_folders=True,
        look_every_s=2.0,
        patience_s=120.0,
        lease_s=432_000.0,
    )

    def __init__(self, setup: Setup) -> None:
        self._home = setup.home
        self._mark = (setup.server or hashlib.sha256(str(setup.home.root).encode()).hexdigest())[:12]
        self._records = Allocations(setup.home.root / "kubernetes")
        self._gathering = GangGathering(self._records)
        self._lock = threading.Lock()
        self._clusters: dict[str, KubeCluster] = {}  # by context
        self._grounds = KubeGrounds(self._cluster)
        self._agent: Path | None = None
        self._seen: dict[tuple[str, int], PodTold] = {}  # the last of each pod: what it said of its end goes with it
        self._why: dict[str, tuple[float, str, bool]] = {}  # why a Job waits, and when that was read

    def offers(self, need: Need) -> list[Offer]:
        if not kubeconfig.is_known(surroundings({})):
            return [Offer("kubernetes", "pod", "no cluster", Decimal(0), unready=kubeconfig.UNSET)]
        if need.size or need.region or need.spot:
            return []
        asked = self._grounds.checked(wanted(need), need)
        return [Offer("kubernetes", "pod", asked.namespace, Decimal(0))] if asked else []

    def start(self, request: NodeRequest) -> None:
        self._gathering.start(request, self._submit)

    def look(self) -> list[NodeSight]:
        """Two lists of each namespace, for all of its Jobs and pods; none while there are none. A cluster that does not
        answer says nothing about the nodes of others."""
        known = self._records.all()
        found: dict[str, ClusterTold | ProviderFailed] = {}
        for where in {one.where for one in known}:
            try:
                found[where] = self._looked(where)
            except ProviderFailed as error:
                found[where] = error
        away = [error for error in found.values() if isinstance(error, ProviderFailed)]
        if away and len(away) == len(found):
            raise away[0]
        return [sight for one in known for sight in self._sights(one, found[one.where])]

    def stop(self, key: str) -> None:
        self._gathering.stop(key, self._stop_one, self._stop_all)

    def renew(self, key: str, lease_s: float) -> None:
        """Kubernetes itself ends a Job whose lease nobody renews, and then removes it."""
        one = self._records.of(key)
        if one is None or one.ended or not one.job:
            return
        cluster, namespace = self._at(one.where)
        found = cluster.get("jobs", namespace, one.name)
        if found is None:
            return
        began = told.started_at(found)
        until_s = lease_s + ((cluster.now() - began).total_seconds() if began else 0.0)
        if abs(until_s - (found["spec"].get("activeDeadlineSeconds") or 0)) > _LEAST_CHANGE_S:
            cluster.patch("jobs", namespace, one.name, {"spec": {"activeDeadlineSeconds": max(int(until_s), 1)}})

    def carried(self, key: str, access: Access) -> Access:  # noqa: ARG002  # a Protocol fixes the signature
        """A folder is one of a claim: `start` checks that it is mounted."""
        return access

    # Starting

    def _submit(self, requests: list[NodeRequest]) -> None:
        """Every object has its name from the key: what is there already is not created a second time."""
        first = requests[0]
        need = first.need or Need(pool=first.pool)
        asked = self._grounds.checked(wanted(replace(need, pool=need.pool or first.pool, nodes=len(requests))), need)
        if asked is None:
            raise ProviderFailed(f"the cluster has no node for {first.key}")
        nodes = [manifests.node(one, asked, _stores(one, asked)) for one in requests]
        cluster, namespace = self._cluster(asked.context), asked.namespace
        name = manifests.name(self._mark, first.key)
        keys, where = tuple(one.key for one in requests), f"{namespace}@{asked.context}"
        one = self._records.keep(self._records.of(first.key) or Allocation(first.key, name, keys, where=where))
        lease_s = first.lease_s or self.features.lease_s
        made = cluster.create("jobs", namespace, manifests.job(name, self._mark, asked, requests, lease_s))
        if made["metadata"].get("labels", {}).get(manifests.SERVER) != self._mark:
            self._records.forget(first.key)
            raise NameTaken(f"namespace {namespace} has a Job {name} that is not of this server")
        if made["metadata"].get("deletionTimestamp"):
            raise ProviderUnavailable(f"Job {name} is being removed")
        uid = str(made["metadata"]["uid"])
        cluster.create("secrets", namespace, manifests.secret(name, self._mark, uid, nodes, self._packed()))
        if len(requests) > 1:
            cluster.create("services", namespace, manifests.service(name, self._mark, uid))
        self._records.keep(replace(one, job=uid))

    # Looking

    def _looked(self, where: str) -> ClusterTold:
        cluster, namespace = self._at(where)
        selector = f"{manifests.SERVER}={self._mark}"
        jobs = {str(one["metadata"]["name"]): one for one in cluster.list("jobs", namespace, selector)}
        pods = told.pods(cluster.list("pods", namespace, selector), cluster.now())
        self._seen |= {(name, index): pod for name, some in pods.items() for index, pod in some.items()}
        return ClusterTold(jobs, pods)

    def _sights(self, one: Allocation, found: ClusterTold | ProviderFailed) -> list[NodeSight]:
        if isinstance(found, ProviderFailed):
            return [NodeSight(key, NodeState.UP, found.message) for key in one.keys if key not in one.stopped]
        job, pods = found.jobs.get(one.name), found.pods.get(one.name, {})
        if one.is_over:
            return [NodeSight(key, NodeState.GONE, "it is being released") for key in one.keys]
        if job is None and not pods:
            if one.job and not one.ended:
                words = f"the cluster has no Job {one.name} any more: somebody deleted it, or it ended over an hour ago"
                one = self._records.keep(replace(one, ended=self._last_words(one) or words))
            reason = one.ended or "it was not submitted"
            return [NodeSight(key, NodeState.GONE, reason, unfinished=not one.job) for key in one.keys]
        whole = told.job(job) if job else JobTold(one.job)
        sights = (self._sight(one, number, pods.get(number), whole, job) for number in range(len(one.keys)))
        return [sight for sight in sights if sight]

    def _sight(
        self, one: Allocation, number: int, pod: PodTold | None, whole: JobTold, job: Found | None
    ) -> NodeSight | None:
        """None: it was stopped, and nothing of it is left."""
        key = one.keys[number]
        if key in one.stopped:
            return NodeSight(key, NodeState.GONE, "it is being released") if pod else None
        if pod and pod.state is NodeState.GONE:
            return NodeSight(key, NodeState.GONE, whole.ended or pod.words, taken=pod.taken, trouble=pod.trouble)
        if pod:
            return NodeSight(key, pod.state, waits=pod.words if pod.state is NodeState.STARTING else "")
        last = self._seen.get((one.name, number))
        if last is None and not (whole.ended or whole.leaving or number in whole.failed | whole.done):
            waits, evicted = self._waits(one, whole)
            if not evicted and not (job and told.is_failed(job)):
                return NodeSight(key, NodeState.STARTING, waits=waits)
        if whole.suspended:
            words = self._waits(one, whole)[0]
            return NodeSight(key, NodeState.GONE, f"its Job was suspended after it had begun: {words}", taken=True)
        gone = "its pod no longer exists: somebody deleted it, or its node"
        words = whole.ended or (last.words if last and (last.doomed or last.state is NodeState.GONE) else "") or gone
        return NodeSight(key, NodeState.GONE, words, taken=bool(last and last.taken))

    def _last_words(self, one: Allocation) -> str:
        said = (self._seen.get((one.name, number)) for number in range(len(one.keys)))
        return "; ".join(dict.fromkeys(pod.words for pod in said if pod and pod.state is NodeState.GONE and pod.words))

    def _waits(self, one: Allocation, whole: JobTold) -> tuple[str, bool]:
        """Why it has no pods, and whether Kueue has evicted it."""
        read_at, words, evicted = self._why.get(one.name, (float("-inf"), "", False))
        if time.monotonic() - read_at > _EVENTS_S:
            words, evicted = self._asked_why(one, whole)
            self._why[one.name] = time.monotonic(), words, evicted
        return f"{words or 'no pod of it exists yet'} (Job {one.name})", whole.suspended and evicted

    def _asked_why(self, one: Allocation, whole: JobTold) -> tuple[str, bool]:
        """Reading it is a right that Stoker need not have."""
        cluster, namespace = self._at(one.where)
        try:
            if whole.suspended:
                return self._grounds.queued(cluster, namespace, whole.uid)
            fields = f"involvedObject.name={one.name},involvedObject.kind=Job"
            return told.refused(cluster.list("events", namespace, fields=fields)), False
        except ProviderFailed:
            return "", False

    # Stopping

    def _stop_one(self, one: Allocation, key: str) -> None:
        """The other nodes of its Job stay, and nothing is started in its place."""
        number = one.keys.index(key)
        cluster, namespace = self._at(one.where)

        def is_gone() -> bool:
            return number not in self._ending(cluster, namespace, one, {number})

        _await(is_gone, f"the pod of {key}")

    def _stop_all(self, one: Allocation) -> None:
        """Its Job disappears when everything that it owns has: nothing is left."""
        cluster, namespace = self._at(one.where)
        cluster.delete("jobs", namespace, one.name, propagationPolicy="Foreground")

        def is_gone() -> bool:
            left = self._ending(cluster, namespace, one, set(range(len(one.keys))))
            return not left and cluster.get("jobs", namespace, one.name) is None

        _await(is_gone, f"Job {one.name}")
        for number in range(len(one.keys)):
            self._seen.pop((one.name, number), None)
        self._why.pop(one.name, None)
        self._records.forget(one.key)

    def _ending(self, cluster: KubeCluster, namespace: str, one: Allocation, indexes: set[int]) -> set[int]:
        """Deletes the pods of these indexes; those that are still there."""
        found = told.pods(cluster.list("pods", namespace, f"{manifests.ATTEMPT}={one.name}"), cluster.now())
        mine = {index: pod for index, pod in found.get(one.name, {}).items() if index in indexes}
        for pod in mine.values():
            cluster.delete("pods", namespace, pod.name, gracePeriodSeconds=_KILL_S)
        return set(mine)

    # What is known of clusters

    def _cluster(self, context: str) -> KubeCluster:
        with self._lock:
            return self._clusters.setdefault(context, KubeCluster(context))

    def _at(self, where: str) -> tuple[KubeCluster, str]:
        namespace, _, context = where.partition("@")
        return self._cluster(context), namespace

    def _packed(self) -> Path:
        if self._agent is None or not self._agent.exists():
            self._agent = pack(self._home.agents, (manifests.NODE,))
        return self._agent


def _stores(request: NodeRequest, asked: PodWanted) -> list[str]:
    """Folders that the node writes to. Raises NotSetUp for one that no claim brings to its pod."""
    routes = Access.from_text(request.access).routes if request.access else ()
    urls = {one.url for one in routes if one.writes} or {request.store}
    folders = sorted(unquote(urlsplit(url).path).rstrip("/") for url in urls if url.startswith("file:"))
    tops = [path.rstrip("/") for _, path in asked.volumes]
    for folder in folders:
        if not any(f"{folder}/".startswith(f"{top}/") for top in tops):
            hint = "use a blob store, or `--setting volumes=CLAIM:/PATH` with a claim of that folder"
            raise NotSetUp(f"the store is the folder {folder}, which pods cannot reach", hint=hint)
    return folders


def _await(is_over: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _OVER_S
    while not is_over():
        if time.monotonic() > deadline:
            hint = "if its node is gone for good: `kubectl delete pod --force`"
            raise ProviderUnavailable(f"{what} was deleted, and has not ended yet", hint=hint)
        time.sleep(0.2)

"""A small Kubernetes of our own: an API server with controllers, whose pods are processes of this computer. It imitates
what Kubernetes documents; it is no proof that a real cluster does the same."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.testing.kubernetes.controllers import JobController, KubeNode, PodScheduler
from stoker.testing.kubernetes.kubelet import PodProcesses
from stoker.testing.kubernetes.objects import KubeObject, KubeObjects, set_condition
from stoker.testing.kubernetes.server import KubeFault, KubeServer, evict, kubeconfig

__all__ = ["FakeKubernetes", "KubeFault", "KubeNode", "fake_kubernetes", "kubeconfig"]

IMAGE = "docker.io/library/python:3.12"
NAMESPACE = "team"
_EVERY_S = 0.03


def _anything(kind: str, one: KubeObject) -> None:
    """No schema."""


class FakeKubernetes:
    """`claims` are folders by the name of their PersistentVolumeClaim."""

    def __init__(self, folder: Path, check: Callable[[str, KubeObject], None] = _anything) -> None:
        self._check = check
        self.objects = KubeObjects()
        self.nodes = [KubeNode(f"node-{number}") for number in range(3)]
        self.claims: dict[str, Path] = {}
        here = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        self.images = {IMAGE: here, "example.org/no-python": "/nothing"}
        self.jobs = JobController(self.objects)
        self.pods = PodProcesses(self.objects, folder / "pods", self.images, self.claims)
        self._scheduler = PodScheduler(self.objects, self.nodes)
        self.server = KubeServer(self.objects, check)
        self.server.nodes = self._shown
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self.server.close()
        self.pods.close()

    def restart(self, away_s: float = 0.0) -> None:
        """The API server is away for a moment, and pods work on. Objects, as in etcd, stay."""
        port = int(self.server.url.rpartition(":")[2])
        self.server.close()
        time.sleep(away_s)
        self.server = KubeServer(self.objects, self._check, port)
        self.server.nodes = self._shown

    def running(self, key: str = "") -> list[KubeObject]:
        """Pods whose containers run, of the node with this key."""
        found = self.objects.select("pods", NAMESPACE)
        return [one for one in found if one["status"]["phase"] == "Running" and key in one["metadata"]["name"]]

    def evict(self, pod: KubeObject, reason: str = "EvictionByEvictionAPI") -> None:
        evict(self.objects, NAMESPACE, pod["metadata"]["name"], reason, "disrupted by a test")

    def admit(self, name: str, *, suspend: bool = False) -> None:
        """As Kueue does, and takes back with `suspend`."""
        self.objects.merge("jobs", NAMESPACE, name, {"spec": {"suspend": suspend}})

    def queue(self, job: KubeObject, condition: str, reason: str, message: str) -> None:
        """Kueue's own object beside a Job, with what it says of it."""
        about = job["metadata"]
        kind = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload"}
        made = {**kind, "metadata": {"name": f"job-{about['name']}", "ownerReferences": [{"uid": about["uid"]}]}}
        if not self.objects.select("workloads", NAMESPACE, fields=f"metadata.name=job-{about['name']}"):
            self.objects.create("workloads", NAMESPACE, made)
        status = "False" if condition == "QuotaReserved" else "True"
        self.objects.change(
            "workloads",
            NAMESPACE,
            f"job-{about['name']}",
            lambda one: set_condition(one, condition, status, reason, message),
        )

    def left(self) -> list[str]:
        """Everything that a namespace still has."""
        kinds = ("jobs", "pods", "secrets", "services", "workloads")
        return [f"{kind}/{one['metadata']['name']}" for kind in kinds for one in self.objects.select(kind, NAMESPACE)]

    def _run(self) -> None:
        while not self._done.wait(_EVERY_S):
            self.jobs.tick()
            self._scheduler.tick()
            self.pods.tick()

    def _shown(self) -> list[KubeObject]:
        return [{"kind": "Node", "metadata": {"name": one.name, "labels": one.labels}} for one in self.nodes]


@contextmanager
def fake_kubernetes(folder: Path, check: Callable[[str, KubeObject], None] = _anything) -> Iterator[FakeKubernetes]:
    made = FakeKubernetes(folder, check)
    try:
        yield made
    finally:
        made.close()

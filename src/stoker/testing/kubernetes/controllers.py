"""What Kubernetes does with objects by itself: Jobs get pods, pods get nodes, and what has lost its owner goes."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from stoker.testing.kubernetes.objects import (
    KubeObject,
    KubeObjects,
    KubeRefused,
    condition,
    is_over,
    owners,
    set_condition,
    stamp,
)

INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass
class KubeNode:
    name: str
    labels: dict[str, str] = field(default_factory=dict)
    room: dict[str, float] = field(default_factory=lambda: {"cpu": 8.0, "memory": 32e9})
    taints: list[dict[str, str]] = field(default_factory=list)
    cordoned: bool = False


class JobController:
    def __init__(self, objects: KubeObjects) -> None:
        self._objects = objects
        self.most_pods: int | None = None  # a quota

    def tick(self) -> None:
        """A pod is removed once its Job has counted it."""
        pods = [one["metadata"] for one in self._objects.select("pods") if is_over(one)]
        for job in self._objects.select("jobs"):
            self._advance(job)
        for kind, one in self._objects.orphans():
            if not one["metadata"].get("deletionTimestamp"):
                self._objects.delete(kind, one["metadata"]["namespace"], one["metadata"]["name"])
        for about in pods:
            if about.get("deletionTimestamp"):
                self._objects.remove("pods", about["namespace"], about["name"])

    def _advance(self, job: KubeObject) -> None:
        about, spec = job["metadata"], job["spec"]
        pods = [pod for pod in self._objects.select("pods", about["namespace"]) if about["uid"] in owners(pod)]
        if about.get("deletionTimestamp"):
            self._collect(job)
            return
        if finished := condition(job, "Failed") or condition(job, "Complete"):
            self._delete(pods)
            ended = datetime.fromisoformat(finished["lastTransitionTime"])
            if (ttl := spec.get("ttlSecondsAfterFinished")) is not None and _age_s(ended) > ttl:
                self._objects.delete("jobs", about["namespace"], about["name"])
            return
        if spec.get("suspend"):
            self._delete(pods)
            self._objects.change("jobs", about["namespace"], about["name"], _suspend)
            return
        changed = self._objects.change("jobs", about["namespace"], about["name"], lambda one: _account(one, pods))
        if changed and not condition(changed, "Failed"):
            self._fill(changed, pods)

    def _collect(self, job: KubeObject) -> None:
        about = job["metadata"]
        left = self._objects.owned(about["uid"])
        for kind, one in left:
            if not one["metadata"].get("deletionTimestamp"):
                self._objects.delete(kind, one["metadata"]["namespace"], one["metadata"]["name"])
        if not left:
            self._objects.remove("jobs", about["namespace"], about["name"])

    def _delete(self, pods: list[KubeObject]) -> None:
        for pod in pods:
            if not is_over(pod) and not pod["metadata"].get("deletionTimestamp"):
                self._objects.delete("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _fill(self, job: KubeObject, pods: list[KubeObject]) -> None:
        status = job["status"]
        counted = ",".join(status.get(name, "") for name in ("failedIndexes", "completedIndexes"))
        over = {int(one) for one in counted.split(",") if one}
        there = {int(pod["metadata"]["annotations"][INDEX]) for pod in pods}
        for index in set(range(job["spec"]["completions"])) - over - there:
            namespace = job["metadata"]["namespace"]
            if self.most_pods is not None and len(self._objects.select("pods", namespace)) >= self.most_pods:
                used = f"used: pods={self.most_pods}, limited: pods={self.most_pods}"
                self._complain(
                    job, f"Error creating: pods is forbidden: exceeded quota: team, requested: pods=1, {used}"
                )
            else:
                self._objects.create("pods", namespace, _pod(job, index))

    def _complain(self, job: KubeObject, message: str) -> None:
        about = job["metadata"]
        if self._objects.select("events", about["namespace"], fields=f"involvedObject.name={about['name']}"):
            return
        made = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{about['name']}.{secrets.token_hex(4)}"},
            "involvedObject": {"kind": "Job", "name": about["name"], "uid": about["uid"]},
            "reason": "FailedCreate",
            "message": message,
            "lastTimestamp": stamp(),
        }
        self._objects.create("events", about["namespace"], made)


def _suspend(job: KubeObject) -> None:
    job.setdefault("status", {}).pop("startTime", None)
    set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended")


def _account(job: KubeObject, pods: list[KubeObject]) -> None:
    spec, status = job["spec"], job.setdefault("status", {})
    status.setdefault("startTime", stamp())
    if condition(job, "Suspended"):
        set_condition(job, "Suspended", "False", "JobResumed", "Job resumed")
    done = _counted(status, "completedIndexes", pods, "Succeeded")
    if "backoffLimitPerIndex" in spec:
        failed = _counted(status, "failedIndexes", pods, "Failed")
    else:
        failed = max(status.get("failed", 0), sum(pod["status"]["phase"] == "Failed" for pod in pods))
        status["failed"] = failed
    started = datetime.fromisoformat(status["startTime"])
    if _age_s(started) > spec.get("activeDeadlineSeconds", float("inf")):
        set_condition(job, "Failed", "True", "DeadlineExceeded", "Job was active longer than specified deadline")
    elif "backoffLimitPerIndex" not in spec and failed > spec.get("backoffLimit", 6):
        set_condition(job, "Failed", "True", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    elif failed and failed + done >= spec["completions"]:
        set_condition(job, "Failed", "True", "FailedIndexes", "Job has failed indexes")
    elif done >= spec["completions"]:
        set_condition(job, "Complete", "True", "CompletionsReached", "Reached expected number of succeeded pods")


def _counted(status: KubeObject, name: str, pods: list[KubeObject], phase: str) -> int:
    """How many indexes, with those whose pods are gone since."""
    counted = {int(one) for one in status.get(name, "").split(",") if one}
    counted |= {int(pod["metadata"]["annotations"][INDEX]) for pod in pods if pod["status"]["phase"] == phase}
    status[name] = ",".join(map(str, sorted(counted)))
    return len(counted)


def _pod(job: KubeObject, index: int) -> KubeObject:
    about, template = job["metadata"], job["spec"]["template"]
    given = template["metadata"]
    own = {"batch.kubernetes.io/job-name": about["name"], INDEX: str(index)}
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": about["name"], "uid": about["uid"], "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{about['name']}-{index}-{secrets.token_hex(3)[:5]}",
            "labels": {**(given.get("labels") or {}), **own},
            "annotations": {**(given.get("annotations") or {}), INDEX: str(index)},
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
        },
        "spec": {**template["spec"], "hostname": f"{about['name']}-{index}"},
        "status": {"phase": "Pending"},
    }


class PodScheduler:
    """By room, labels, taints and cordons; of several nodes the one with the fewest pods."""

    def __init__(self, objects: KubeObjects, nodes: list[KubeNode]) -> None:
        self._objects, self._nodes = objects, nodes

    def tick(self) -> None:
        pods = [pod for pod in self._objects.select("pods") if not is_over(pod)]
        for pod in pods:
            if pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
                continue
            fitting = [node for node in self._nodes if self._fits(pod, node, pods)]
            chosen = min(fitting, key=lambda node: sum(_is_on(one, node) for one in pods), default=None)
            if chosen:
                pod["spec"]["nodeName"] = chosen.name
            about = pod["metadata"]
            self._objects.change("pods", about["namespace"], about["name"], partial(self._place, chosen=chosen))

    def _place(self, pod: KubeObject, chosen: KubeNode | None) -> None:
        if chosen:
            pod["spec"]["nodeName"] = chosen.name
            set_condition(pod, "PodScheduled", "True", "", "")
        else:
            asked = ", ".join(f"Insufficient {name}" for name in _asked(pod))
            words = f"0/{len(self._nodes)} nodes are available: {asked}."
            set_condition(pod, "PodScheduled", "False", "Unschedulable", words)

    def _fits(self, pod: KubeObject, node: KubeNode, pods: list[KubeObject]) -> bool:
        used: dict[str, float] = {}
        for one in pods:
            for name, amount in _asked(one).items() if _is_on(one, node) else ():
                used[name] = used.get(name, 0.0) + amount
        room = all(node.room.get(name, 0.0) - used.get(name, 0.0) >= size for name, size in _asked(pod).items())
        tolerated = all(
            any(_tolerates(one, taint) for one in pod["spec"].get("tolerations") or ()) for taint in node.taints
        )
        return room and tolerated and not node.cordoned and _is_labelled(pod["spec"], node.labels)


def _is_labelled(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {"nodeSelectorTerms": [{"matchExpressions": []}]}
    return any(
        all(labels.get(one["key"]) in one["values"] for one in term["matchExpressions"])
        for term in affinity["nodeSelectorTerms"]
    )


def _is_on(pod: KubeObject, node: KubeNode) -> bool:
    return bool(pod["spec"].get("nodeName") == node.name)


def _tolerates(toleration: Mapping[str, str], taint: Mapping[str, str]) -> bool:
    same = toleration.get("operator") == "Exists" or toleration.get("value") == taint.get("value")
    return toleration["key"] == taint["key"] and same and toleration.get("effect") in (None, taint["effect"])


def _asked(pod: KubeObject) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in pod["spec"]["containers"]:
        for name, text in ((one.get("resources") or {}).get("requests") or {}).items():
            found[name] = found.get(name, 0.0) + quantity(str(text))
    return found


def quantity(text: str) -> float:
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)(m|k|M|G|Ki|Mi|Gi)?", text)):
        raise KubeRefused(422, "Invalid", f"quantities must match the regular expression: {text!r}")
    units = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
    return float(found[1]) * units.get(found[2] or "", 1.0)


def _age_s(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()

"""What a Job and its pods say of the nodes of an attempt, as states with words of Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stoker.errors import NotSetUp
from stoker.model.node import NodeState
from stoker.providers.kubernetes.manifests import INDEX

Found = Mapping[str, Any]
PULL_S = 120.0  # for a registry or a Secret to appear: the kubelet tries again and again
_MEANING = {
    "PreemptionByScheduler": "a pod of higher priority preempted it",
    "DeletionByTaintManager": "its node was tainted, which also happens when it does not answer or is removed",
    "EvictionByEvictionAPI": "it was evicted, as when its node is drained",
    "DeletionByPodGC": "its node no longer exists",
    "TerminationByKubelet": "its node ended it, as at a shutdown",
}
_WORKS = ("Running", "Unknown")  # where a node does not answer, its agent may still work
_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError")
_BROKEN = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True, slots=True)
class PodTold:
    """One pod. `doomed` says that something is ending it, though it may still work."""

    name: str
    index: int
    state: NodeState
    words: str = ""  # why it waits, or how it ended
    taken: bool = False
    trouble: str = ""
    doomed: bool = False


@dataclass(frozen=True, slots=True)
class JobTold:
    """A Job as a whole. `ended` is why none of its nodes is there; empty: they say so themselves."""

    uid: str
    suspended: bool = False
    leaving: bool = False
    ended: str = ""
    failed: frozenset[int] = frozenset()  # indexes that nothing is started for any more
    done: frozenset[int] = frozenset()


def pods(found: Iterable[Found], now: datetime) -> dict[str, dict[int, PodTold]]:
    """By the label of the attempt and the index; the newest, where there are several."""
    told: dict[str, dict[int, PodTold]] = {}
    for one in sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        pod = _pod(one, now)
        told.setdefault(str(one["metadata"]["labels"].get("stoker.dev/attempt", "")), {})[pod.index] = pod
    return told


def _pod(found: Found, now: datetime) -> PodTold:
    about, status = found["metadata"], found.get("status") or {}
    name, index = str(about["name"]), int((about.get("annotations") or {}).get(INDEX, 0))
    phase, leaving = status.get("phase", "Pending"), bool(about.get("deletionTimestamp"))
    disruption = _condition(status, "DisruptionTarget")
    why = _disrupted(disruption) if disruption else ""
    taken = bool(why) and status.get("reason") != "Evicted"  # a full disk or memory comes back with the run
    if phase in ("Succeeded", "Failed"):
        return PodTold(name, index, NodeState.GONE, f"{why or _ended(status)} (pod {name})", taken)
    if why or leaving:
        state = NodeState.UP if phase in _WORKS else NodeState.GONE
        return PodTold(name, index, state, f"{why or 'somebody deleted it'} (pod {name})", taken, doomed=True)
    if phase in _WORKS:
        return PodTold(name, index, NodeState.UP)
    words, hopeless = _waits(status, now)
    if hopeless:
        return PodTold(name, index, NodeState.GONE, f"{words} (pod {name})", trouble=NotSetUp.code)
    return PodTold(name, index, NodeState.STARTING, f"{words} (pod {name})" if words else "")


def _disrupted(condition: Found) -> str:
    reason, message = str(condition.get("reason", "")), str(condition.get("message", ""))
    said = f"{reason}: {message}".strip(": ")
    return f"{_MEANING[reason]} ({said})" if reason in _MEANING else said or "it was disrupted"


def _ended(status: Found) -> str:
    """In words of Kubernetes: of the pod itself, or of the container that failed."""
    if status.get("reason"):
        return f"its pod ended as {status['reason']}: {status.get('message', '')}".strip().rstrip(":")
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        if (over := (one.get("state") or {}).get("terminated")) and over.get("exitCode"):
            said = " ".join(str(over.get("message") or "").split())[-300:]
            if over.get("reason") == "OOMKilled":
                return "OOMKilled: it used more memory than its limit, and all of its processes were killed"
            return f"its container `{one['name']}` ended with {over['exitCode']}: {said}".rstrip(": ")
    return "its agent has ended"


def _waits(status: Found, now: datetime) -> tuple[str, bool]:
    """Why, and whether waiting longer is of no use."""
    placed = _condition(status, "PodScheduled", anyhow=True)
    if placed and placed.get("status") == "False":
        return f"{placed.get('reason', '')}: {placed.get('message', '')}".strip(": "), False
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        if (reason := waiting.get("reason", "")) in (*_IMAGE, *_BROKEN):
            since = _moment((placed or {}).get("lastTransitionTime"))
            long = since is not None and (now - since).total_seconds() > PULL_S
            return f"{reason}: {waiting.get('message', '')}".strip(": "), long or reason == "InvalidImageName"
    return "", False


def job(found: Found) -> JobTold:
    about, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    over = _condition(status, "Failed") or _condition(status, "FailureTarget")
    ended = f"{over.get('reason', '')}: {over.get('message', '')}".strip(": ") if over else ""
    if over and over.get("reason") == "DeadlineExceeded":
        ended = f"DeadlineExceeded: its lease expired, because no server renewed it ({over.get('message', '')})"
    elif over:
        ended = ""  # of one of its nodes, which says more
    return JobTold(
        uid=str(about["uid"]),
        suspended=bool(spec.get("suspend")),
        leaving=bool(about.get("deletionTimestamp")),
        ended=ended,
        failed=_indexes(str(status.get("failedIndexes") or "")),
        done=_indexes(str(status.get("completedIndexes") or "")),
    )


def is_failed(found: Found) -> bool:
    return _condition(found.get("status") or {}, "Failed") is not None


def started_at(found: Found) -> datetime | None:
    return _moment((found.get("status") or {}).get("startTime"))


def refused(events: Iterable[Found]) -> str:
    """Why a Job has no pods, by the last word of its controller: a quota, or a policy of the cluster."""
    said = [one for one in events if one.get("reason") == "FailedCreate"]
    last = max(said, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""), default=None)
    return f"FailedCreate: {last.get('message', '')}" if last else ""


def queued(workloads: Iterable[Found], uid: str) -> tuple[str, bool]:
    """What Kueue says of a Job that it has not admitted, and whether it has evicted it."""
    for one in workloads:
        if any(owner.get("uid") == uid for owner in one["metadata"].get("ownerReferences") or ()):
            status = one.get("status") or {}
            evicted = _condition(status, "Evicted")
            reserved = _condition(status, "QuotaReserved", anyhow=True)
            said = evicted or (reserved if reserved and reserved.get("status") == "False" else None) or {}
            return f"{said.get('reason', '')}: {said.get('message', '')}".strip(": "), evicted is not None
    return "", False


def _condition(status: Found, kind: str, *, anyhow: bool = False) -> Found | None:
    """`anyhow`: also where it does not hold."""
    return next(
        (one for one in status.get("conditions") or () if one["type"] == kind and (anyhow or one["status"] == "True")),
        None,
    )


def _indexes(text: str) -> frozenset[int]:
    """Of `0,2-4`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _moment(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(text)) if text else None
    except ValueError:
        return None

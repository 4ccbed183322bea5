"""What an API server keeps: objects with versions, selected by labels and fields, and removed with their owners."""

from __future__ import annotations

import copy
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

KubeObject = dict[str, Any]
FOREGROUND = "foregroundDeletion"


class KubeRefused(Exception):
    """As a `Status` of the API server has it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class KubeObjects:
    """Every method is atomic, and what it returns is a copy. Called from several threads."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str, str], KubeObject] = {}
        self._version = 0
        self._lock = threading.RLock()

    def create(self, kind: str, namespace: str, given: Mapping[str, Any]) -> KubeObject:
        made = copy.deepcopy(dict(given))
        about = made["metadata"]
        with self._lock:
            if (kind, namespace, about["name"]) in self._all:
                raise KubeRefused(409, "AlreadyExists", f'{kind} "{about["name"]}" already exists')
            about |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
            self._all[kind, namespace, about["name"]] = made
            return self._changed(made)

    def get(self, kind: str, namespace: str, name: str) -> KubeObject:
        with self._lock:
            return copy.deepcopy(self._of(kind, namespace, name))

    def select(self, kind: str, namespace: str = "", labels: str = "", fields: str = "") -> list[KubeObject]:
        with self._lock:
            found = [one for (its, at, _), one in sorted(self._all.items()) if its == kind and namespace in ("", at)]
            return [copy.deepcopy(one) for one in found if _has(one, labels, fields)]

    def change(self, kind: str, namespace: str, name: str, how: Callable[[KubeObject], None]) -> KubeObject | None:
        """None: it is gone."""
        with self._lock:
            if (kind, namespace, name) not in self._all:
                return None
            one = self._all[kind, namespace, name]
            before = copy.deepcopy(one)
            how(one)
            return self._changed(one) if one != before else copy.deepcopy(one)

    def merge(self, kind: str, namespace: str, name: str, change: Mapping[str, Any]) -> KubeObject:
        with self._lock:
            one = self._of(kind, namespace, name)
            version = (change.get("metadata") or {}).get("resourceVersion")
            if version not in (None, one["metadata"]["resourceVersion"]):
                raise KubeRefused(409, "Conflict", f'Operation cannot be fulfilled on {kind} "{name}"')
            _merge(one, change)
            return self._changed(one)

    def delete(self, kind: str, namespace: str, name: str, grace_s: float | None = None, how: str = "") -> KubeObject:
        """What still runs, or still owns something, is only marked: a kubelet or `collect` removes it later."""
        with self._lock:
            one = self._of(kind, namespace, name)
            about = one["metadata"]
            waits = kind == "pods" and not is_over(one)
            if waits and not (one["spec"].get("nodeName")):  # nothing of it runs
                one["status"]["phase"], grace_s = "Failed", 0.0
            if kind == "pods":
                usual_s = one["spec"].get("terminationGracePeriodSeconds", 30)
                left_s = usual_s if grace_s is None else grace_s
                at = stamp(left_s)
                about["deletionTimestamp"] = min(about.get("deletionTimestamp", at), at)
                about["deletionGracePeriodSeconds"] = left_s
            elif how == "Foreground":
                about["deletionTimestamp"] = stamp()
                about["finalizers"] = [FOREGROUND]
            else:
                del self._all[kind, namespace, name]
            return self._changed(one)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        with self._lock:
            self._all.pop((kind, namespace, name), None)

    def owned(self, uid: str) -> list[tuple[str, KubeObject]]:
        with self._lock:
            found = [(kind, one) for (kind, _, _), one in self._all.items()]
            return [(kind, copy.deepcopy(one)) for kind, one in found if uid in owners(one)]

    def orphans(self) -> list[tuple[str, KubeObject]]:
        with self._lock:
            uids = {one["metadata"]["uid"] for one in self._all.values()}
            found = [(kind, one) for (kind, _, _), one in self._all.items()]
            return [(kind, copy.deepcopy(one)) for kind, one in found if owners(one) and not owners(one) & uids]

    def _of(self, kind: str, namespace: str, name: str) -> KubeObject:
        if (kind, namespace, name) not in self._all:
            raise KubeRefused(404, "NotFound", f'{kind} "{name}" not found')
        return self._all[kind, namespace, name]

    def _changed(self, one: KubeObject) -> KubeObject:
        self._version += 1
        one["metadata"]["resourceVersion"] = str(self._version)
        return copy.deepcopy(one)


def owners(one: KubeObject) -> set[str]:
    return {str(owner["uid"]) for owner in one["metadata"].get("ownerReferences") or ()}


def is_over(pod: KubeObject) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def stamp(later_s: float = 0.0) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=later_s):%Y-%m-%dT%H:%M:%SZ}"


def set_condition(one: KubeObject, kind: str, status: str, reason: str, message: str) -> None:
    conditions = one.setdefault("status", {}).setdefault("conditions", [])
    before = next((each for each in conditions if each["type"] == kind), None)
    made = {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp()}
    if before is None:
        conditions.append(made)
    elif before["status"] != status:
        before.update(made)
    else:
        before.update(reason=reason, message=message)


def condition(one: KubeObject, kind: str) -> KubeObject | None:
    found = (one.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind and each["status"] == "True"), None)


def _merge(one: KubeObject, change: Mapping[str, Any]) -> None:
    for name, value in change.items():
        if value is None:
            one.pop(name, None)
        elif isinstance(value, dict) and isinstance(one.get(name), dict):
            _merge(one[name], value)
        else:
            one[name] = copy.deepcopy(value)


def _has(one: KubeObject, labels: str, fields: str) -> bool:
    mine = one["metadata"].get("labels") or {}
    pairs = [part.partition("=") for part in labels.split(",") if part]
    places = [part.partition("=") for part in fields.split(",") if part]
    return all(mine.get(name) == value for name, _, value in pairs) and all(
        _at(one, place) == value for place, _, value in places
    )


def _at(one: KubeObject, place: str) -> object:
    found: Any = one
    for name in place.split("."):
        found = (found or {}).get(name)
    return found

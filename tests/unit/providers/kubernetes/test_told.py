"""What is made of pods and Jobs as a cluster describes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stoker.model.node import NodeState
from stoker.providers.kubernetes import told
from stoker.providers.kubernetes.manifests import INDEX

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(phase: str = "Pending", index: int = 0, created: str = "", **status: Any) -> dict[str, Any]:
    about = {"name": f"a-{index}", "annotations": {INDEX: str(index)}, "labels": {"stoker.dev/attempt": "a"}}
    return {"metadata": {**about, "creationTimestamp": created}, "status": {"phase": phase, **status}}


def seen(one: dict[str, Any]) -> told.PodTold:
    return told.pods([one], NOW)["a"][0]


def condition(kind: str, reason: str, status: str = "True", at: str = "2026-01-01T11:59:00Z") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": "words-17", "lastTransitionTime": at}


def container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "agent", "state": state}]


def test_a_pod_that_is_being_ended_still_works() -> None:
    one = pod("Running", conditions=[condition("DisruptionTarget", "PreemptionByScheduler")])
    one["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:30Z"
    found = seen(one)
    assert (found.state, found.taken, found.doomed) == (NodeState.UP, True, True)
    assert "words-17" in found.words


def test_a_pod_whose_node_does_not_answer_may_still_work() -> None:
    assert seen(pod("Unknown")).state is NodeState.UP


def test_a_node_that_has_no_room_left_is_no_eviction_without_end() -> None:
    """What fills the disk of one node fills that of the next."""
    disrupted = condition("DisruptionTarget", "TerminationByKubelet")
    found = seen(pod("Failed", reason="Evicted", message="ephemeral storage", conditions=[disrupted]))
    assert (found.state, found.taken) == (NodeState.GONE, False)


@pytest.mark.parametrize(
    ("reason", "at", "state"),
    [
        ("ImagePullBackOff", "2026-01-01T11:59:00Z", NodeState.STARTING),
        ("ImagePullBackOff", "2026-01-01T11:50:00Z", NodeState.GONE),
        ("InvalidImageName", "2026-01-01T11:59:59Z", NodeState.GONE),
        ("CreateContainerConfigError", "2026-01-01T11:50:00Z", NodeState.GONE),
        ("ContainerCreating", "2026-01-01T10:00:00Z", NodeState.STARTING),
    ],
)
def test_waiting_for_what_does_not_exist_ends_after_a_while(reason: str, at: str, state: NodeState) -> None:
    placed = condition("PodScheduled", "", at=at)
    found = seen(pod(conditions=[placed], containerStatuses=container(waiting={"reason": reason, "message": "m"})))
    assert found.state is state
    assert (found.trouble == "not-set-up") == (state is NodeState.GONE)


def test_waiting_for_a_node_has_no_limit() -> None:
    placed = condition("PodScheduled", "Unschedulable", "False", "2025-01-01T00:00:00Z")
    found = seen(pod(conditions=[placed]))
    assert (found.state, found.trouble) == (NodeState.STARTING, "")
    assert "Unschedulable: words-17" in found.words


def test_the_last_lines_of_a_container_say_why_it_failed() -> None:
    over = {"exitCode": 127, "reason": "Error", "message": "sh: not there-17\n"}
    assert "there-17" in seen(pod("Failed", initContainerStatuses=container(terminated=over))).words


def test_the_newest_pod_of_an_index_counts() -> None:
    old, new = pod("Failed", created="2026-01-01T11:00:00Z"), pod("Running", created="2026-01-01T11:30:00Z")
    other = pod("Running", 1)
    found = told.pods([new, old, other], NOW)["a"]
    assert {index: one.state for index, one in found.items()} == {0: NodeState.UP, 1: NodeState.UP}


def test_a_job_says_which_of_its_indexes_are_over() -> None:
    about = {"metadata": {"uid": "u"}, "spec": {"suspend": True}}
    found = told.job({**about, "status": {"failedIndexes": "0,3-5", "completedIndexes": "7"}})
    assert (sorted(found.failed), sorted(found.done), found.suspended) == ([0, 3, 4, 5], [7], True)
    assert told.job(about).failed == frozenset()

"""The instance metadata service, answer by answer, as the machine in question would get them."""

import json
from typing import Any

import pytest

from stoker.twin.machines.metadata import MetadataReply, MetadataSubject, Question, answer, instance_document

EVENTS = {"DocumentIncarnation": 4, "Events": [{"EventId": "AB-1", "EventType": "Preempt"}]}
ASKED = {"Metadata": "true"}


class Seen:
    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def ask(self, target: str, verb: str = "GET", headers: dict[str, str] = ASKED, body: Any = None) -> MetadataReply:
        subject = MetadataSubject(
            instance_document({"name": "vm1", "tagsList": [{"name": "a", "value": "b"}]}, "10.1.2.3"),
            lambda: EVENTS,
            self.acknowledged.extend,
            self.token,
            self.wake,
        )
        return answer(Question(verb, target, headers, json.dumps(body).encode()), subject)

    def token(self, resource: str) -> dict[str, str]:
        if resource == "none":
            raise LookupError("Identity not found")
        return {"access_token": f"for {resource}"}


@pytest.fixture
def machine() -> Seen:
    return Seen()


def test_facts_are_found_as_a_whole_and_one_by_one(machine: Seen) -> None:
    whole = json.loads(machine.ask("/metadata/instance?api-version=2021-02-01").body)
    assert whole["compute"]["name"] == "vm1"
    assert whole["network"]["interface"][0]["ipv4"]["ipAddress"][0]["privateIpAddress"] == "10.1.2.3"
    name = machine.ask("/metadata/instance/compute/name?api-version=2021-02-01&format=text")
    assert (name.body, name.kind) == (b"vm1", "text/plain; charset=utf-8")
    tag = machine.ask("/metadata/instance/compute/tagsList/0/value?api-version=2021-02-01&format=text")
    assert tag.body == b"b"
    assert machine.ask("/metadata/instance/compute/nothing?api-version=2021-02-01").status == 404
    assert machine.ask("/metadata/instance/compute?api-version=2021-02-01&format=text").status == 400


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/metadata/instance?api-version=2021-02-01", {}),
        ("/metadata/instance?api-version=2021-02-01", {"Metadata": "false"}),
        ("/metadata/instance?api-version=2021-02-01", {"Metadata": "true", "X-Forwarded-For": "1.2.3.4"}),
        ("/metadata/instance", ASKED),
        ("/metadata/instance?api-version=1999-01-01", ASKED),
        ("/metadata/scheduledevents?api-version=2021-02-01", ASKED),
        ("/metadata/identity/oauth2/token?api-version=2018-02-01", ASKED),
    ],
)
def test_a_question_without_header_version_or_resource_is_refused(
    machine: Seen, target: str, headers: dict[str, str]
) -> None:
    assert machine.ask(target, headers=headers).status == 400
    assert machine.woken == 0


def test_a_wrong_version_is_answered_with_those_that_are_right(machine: Seen) -> None:
    reply = json.loads(machine.ask("/metadata/scheduledevents?api-version=x").body)
    assert reply["newest-versions"] == ["2020-07-01", "2019-08-01", "2019-04-01"]


def test_events_are_reported_and_acknowledged(machine: Seen) -> None:
    target = "/metadata/scheduledevents?api-version=2020-07-01"
    assert json.loads(machine.ask(target).body) == EVENTS
    start = {"DocumentIncarnation": 4, "StartRequests": [{"EventId": "ab-1"}]}
    assert machine.ask(target, "POST", body=start).status == 200
    assert machine.acknowledged == ["ab-1"]


@pytest.mark.parametrize(
    "body",
    [
        {"StartRequests": [{"EventId": "other"}]},
        {"DocumentIncarnation": 3, "StartRequests": [{"EventId": "AB-1"}]},
        {"StartRequests": [{}]},
        [],
        None,
    ],
)
def test_an_acknowledgement_of_something_else_is_refused(machine: Seen, body: Any) -> None:
    reply = machine.ask("/metadata/scheduledevents?api-version=2020-07-01", "POST", body=body)
    assert (reply.status, machine.acknowledged) == (400, [])


def test_a_token_is_for_the_resource_that_was_asked_for(machine: Seen) -> None:
    reply = machine.ask("/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fa.b%2F")
    assert json.loads(reply.body) == {"access_token": "for https://a.b/"}


def test_a_machine_without_identity_gets_no_token(machine: Seen) -> None:
    reply = machine.ask("/metadata/identity/oauth2/token?api-version=2018-02-01&resource=none")
    assert (reply.status, json.loads(reply.body)["error_description"]) == (400, "Identity not found")

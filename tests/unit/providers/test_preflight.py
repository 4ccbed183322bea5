"""What a preflight makes of Azure's answers, and of Azure's refusals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace

import pytest

from stoker.client.local.preflight import markdown, proof_job
from stoker.errors import NotSetUp, ProviderFailed
from stoker.model.job.job import Fallback
from stoker.model.run.run import Event
from stoker.model.workspace.store import CheckResult, Finding
from stoker.providers.azure.refusals import translated
from stoker.providers.azure.setup import answers
from stoker.providers.azure.setup import answers as rights
from stoker.providers.azure.setup.answers import Permission

OWNER, READER = Permission(("*",)), Permission(("*/read",))
CONTRIBUTOR = Permission(("*",), ("Microsoft.Authorization/*/Write", "Microsoft.Authorization/*/Delete"))
NODE = {"template": {"resources": [{"type": "Microsoft.Compute/virtualMachines"}]}}


@pytest.mark.parametrize(
    ("ahead_s", "verdict", "words"),
    [
        (0.5, CheckResult.OK, "agrees"),
        (-30, CheckResult.OK, "30 s ahead of Azure's"),
        (90, CheckResult.WARN, "90 s behind Azure's"),
        (-301, CheckResult.FAIL, "301 s ahead of Azure's"),
    ],
)
def test_a_clock_that_is_wrong_by_minutes_keeps_a_run_from_starting(
    ahead_s: float, verdict: CheckResult, words: str
) -> None:
    found = answers.clock(timedelta(seconds=ahead_s))
    assert found.verdict is verdict
    assert words in found.found


def test_a_service_that_is_being_registered_is_a_warning() -> None:
    found = answers.services({"Microsoft.Compute": "Registering", "Microsoft.Network": "Registered"})
    assert (found.verdict, found.found) == (CheckResult.WARN, "being registered: Microsoft.Compute")


@pytest.mark.parametrize(
    ("groups", "assignments", "verdict"),
    [(10, 20, CheckResult.OK), (900, 20, CheckResult.WARN), (980, 20, CheckResult.FAIL), (1, 4000, CheckResult.FAIL)],
)
def test_a_subscription_that_is_nearly_full_is_reported_in_time(
    groups: int, assignments: int, verdict: CheckResult
) -> None:
    found = answers.limits(groups, assignments)
    assert (found.verdict, f"{groups} of 980 resource groups" in found.found) == (verdict, True)


def test_a_setup_registers_services_itself() -> None:
    found = answers.services({"Microsoft.Compute": "NotRegistered"}, made=True)
    assert (found.verdict, found.advice) == (CheckResult.WARN, "the set-up registers them")


def test_rights_that_a_role_leaves_out_are_lacking() -> None:
    wanted = [*rights.needed(NODE, shared=False), "Microsoft.Authorization/roleAssignments/write"]
    assert rights.lacking(wanted, [OWNER]) == []
    assert rights.lacking(wanted, [READER, CONTRIBUTOR]) == ["Microsoft.Authorization/roleAssignments/write"]
    assert rights.roles_for(rights.lacking(wanted, [READER])) == ["Contributor", "User Access Administrator"]
    assert "Microsoft.Resources/subscriptions/resourceGroups/write" not in rights.needed(NODE, shared=True)


def test_one_region_that_works_makes_failures_elsewhere_warnings() -> None:
    bad, good = Finding("a", CheckResult.FAIL, "no"), Finding("b", CheckResult.OK, "yes")
    assert [one.verdict for one in answers.best({"x": [bad], "y": [good]})] == [CheckResult.WARN, CheckResult.OK]
    assert [one.verdict for one in answers.best({"x": [bad], "y": [good, bad]})] == [CheckResult.FAIL, CheckResult.OK]


def refused(code: str, message: str) -> ProviderFailed:
    """As a deployment wraps the reason."""
    inner = SimpleNamespace(code=code, message=message, details=())
    error = Exception("x")
    error.error = SimpleNamespace(code="InvalidTemplateDeployment", message="see inner", details=[inner])  # type: ignore[attr-defined]
    return translated(error, "starting ants-1")


def test_a_policy_that_refuses_is_named_and_leaves_other_offers_open() -> None:
    id = "/subscriptions/s/providers/Microsoft.Authorization/policyAssignments/eu"
    named = [{"policyAssignment": {"name": "EU only", "id": id}, "policyDefinition": {"name": "x", "id": "y"}}]
    message = f"Resource 'node' was disallowed by policy. Policy identifiers: '{json.dumps(named)}'."
    error = refused("RequestDisallowedByPolicy", message)
    assert error.code == "provider-failed"  # this offer is closed; `not-allowed` would end the run
    assert error.message == (
        "starting ants-1: RequestDisallowedByPolicy: the policy `EU only` refuses it: "
        "Resource 'node' was disallowed by policy"
    )
    assert error.hint.startswith("az policy assignment show --name eu --scope /subscriptions/s;")


def test_a_disabled_subscription_and_a_missing_service_ask_for_somebody_to_act() -> None:
    assert isinstance(refused("ReadOnlyDisabledSubscription", "…"), NotSetUp)
    error = refused("MissingSubscriptionRegistration", "not registered to use namespace 'Microsoft.Network'. See")
    assert isinstance(error, NotSetUp)
    assert error.hint == "az provider register --namespace Microsoft.Network --wait"


def test_what_a_deployment_was_refused_for_is_reported_whatever_its_code() -> None:
    assert refused("PlatformImageNotFound", "no such image").message == (
        "starting ants-1: PlatformImageNotFound: no such image"
    )


def test_a_report_has_every_check_and_neither_ids_nor_secrets() -> None:
    id, at = "0f0f0f0f-aaaa-bbbb-cccc-0123456789ab", datetime(2026, 11, 17, 12, tzinfo=UTC)
    findings = [
        Finding("login", CheckResult.OK, f"anna@example.org, tenant {id}"),
        Finding(
            "store", CheckResult.FAIL, "https://a/b?sv=1&sig=hush is closed | really", "look at /home/anna/.stoker/x"
        ),
    ]
    text = markdown("azure", "1.0", at, findings, [Event(at, "evicted", f"by {id}")], "/home/anna/.stoker")
    assert text.startswith("# Stoker 1.0 on `azure`: a run could **not** start\n")
    assert "| login | ok | <mail>, tenant 0f0f0f0f-… |" in text
    assert r"is closed \| really | look at ~/x |" in text
    assert "| 12:00:00 | evicted | by 0f0f0f0f-… |" in text
    assert not any(private in text for private in (id, "hush", "anna"))


def test_the_proof_is_a_spot_run_whose_budget_is_what_may_be_spent() -> None:
    job = proof_job("azure", Decimal("0.05"))
    assert (job.on, job.budget) == ("azure", Decimal("0.05"))
    assert job.spot
    assert job.spot.fallback is Fallback.NONE
    assert job.time_limit is not None

"""What the twin reads: paths, filters, templates, tokens, and its own memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from twinasks import Asker

from stoker.errors import TwinFailed
from stoker.twin import ids, state, tokens
from stoker.twin.arm.template import Scope, evaluate
from stoker.twin.refusal import Refused
from stoker.twin.state import Chore
from stoker.twin.time.weather import FORECASTS, Weather
from stoker.twin.web import odata
from stoker.twin.world import ready

VMS = "Microsoft.Compute/virtualMachines"
LOCKS = "Microsoft.Authorization/locks"
VM = "/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/V"


@pytest.mark.parametrize(
    ("path", "kind", "names", "tail", "id"),
    [
        ("/subscriptions/S", ids.SUBSCRIPTIONS, ("S",), "", "/subscriptions/S"),
        ("/subscriptions/S/resourcegroups/G", ids.GROUPS, ("G",), "", "/subscriptions/S/resourceGroups/G"),
        ("/subscriptions/S/resourcegroups", ids.SUBSCRIPTIONS, ("S",), "resourcegroups", "/subscriptions/S"),
        (VM.replace("virtualMachines", "virtualmachines"), VMS, ("V",), "", VM),
        (VM.replace("resourceGroups", "resourcegroups"), VMS, ("V",), "", VM),
        (f"{VM}/start", VMS, ("V",), "start", VM),
        (f"{VM}/extensions/E", f"{VMS}/extensions", ("V", "E"), "", f"{VM}/extensions/E"),
        (f"{VM}/providers/{LOCKS}/L", LOCKS, ("L",), "", f"{VM}/providers/{LOCKS}/L"),
    ],
)
def test_a_path_names_a_thing_whatever_its_spelling(path: str, kind: str, names: Any, tail: str, id: str) -> None:
    target = ids.read(path)
    assert (target.kind, target.names, target.tail, target.id) == (kind, names, tail, id)


ITEM = {"armRegionName": "westeurope", "skuName": "D4s v5 Spot", "price": 0.5, "quoted": "it's"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("armRegionName eq 'westeurope'", True),
        ("armRegionName eq 'WestEurope'", False),
        ("armRegionName eq 'westeurope' and contains(skuName, 'Spot')", True),
        ("not contains(skuName, 'Spot') or price lt 0.6", True),
        ("(armRegionName eq 'x' or price ge 0.5) and skuName ne 'y'", True),
        ("startswith(skuName, 'D8') eq true", False),
        ("endswith(skuName,'Spot') eq false", False),
        ("quoted eq 'it''s'", True),
    ],
)
def test_filters_are_read_as_the_price_list_reads_them(text: str, fits: bool) -> None:
    assert odata.parse(text)(ITEM) is fits


@pytest.mark.parametrize("text", ["a eq", "a almost 'b'", "(a eq 'b'", "a eq 'b' 'c'"])
def test_a_filter_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="InvalidFilterInQueryString"):
        odata.parse(text)


PARAMETERS = {"name": "box", "list": ["a", "b"]}
VARIABLES = {"nic": "[concat(parameters('name'), '-nic')]"}
SCOPE = Scope(
    PARAMETERS,
    VARIABLES,
    "S",
    "T",
    "G",
    "eastus",
    lambda name: {"properties": {"of": name}, "identity": {"principalId": "me"}},
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[concat(parameters('name'), 'Subnet')]", "boxSubnet"),
        ("[variables('nic')]", "box-nic"),
        ("[resourceId('Microsoft.Compute/virtualMachines', parameters('name'))]", VM.replace("/V", "/box")),
        ("[resourceGroup().location]", "eastus"),
        ("[parameters('list')[1]]", "b"),
        ("[if(equals(parameters('name'), 'box'), 'it''s', 2)]", "it's"),
        ("[format('{0}-{1}', parameters('name'), length(parameters('list')))]", "box-2"),
        ("[reference('x').of]", "x"),
        ("[reference('x', '2024-07-01', 'Full').identity.principalId]", "me"),
        ("[[not an expression]", "[not an expression]"),
        ("plain", "plain"),
    ],
)
def test_template_expressions_come_to_their_values(text: str, value: Any) -> None:
    assert evaluate({"inside": [text]}, SCOPE) == {"inside": [value]}


@pytest.mark.parametrize("text", ["[nonsense()]", "[parameters('missing')]", "[concat('a']", "[concat('a') 'b']"])
def test_a_template_that_cannot_be_worked_out_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="InvalidTemplate"):
        evaluate(text, SCOPE)


def deployment(azure: Asker, **changes: Any) -> dict[str, Any]:
    vm = azure.vm_body("vm")
    network = {
        "addressSpace": {"addressPrefixes": ["10.0.0.0/16"]},
        "subnets": [{"name": "nodes", "properties": {"addressPrefix": "10.0.0.0/24"}}],
    }
    resources = [
        {
            "type": "Microsoft.Compute/virtualMachines",
            "name": "[parameters('name')]",
            "apiVersion": "2024-07-01",
            "dependsOn": ["Microsoft.Network/virtualNetworks/net"],
            **vm,
            **changes,
        },
        {
            "type": "Microsoft.Network/virtualNetworks",
            "name": "net",
            "apiVersion": "2022-07-01",
            "location": "westeurope",
            "properties": network,
        },
    ]
    parameters = {"name": {"type": "string"}, "secret": {"type": "securestring", "defaultValue": ""}}
    template = {"parameters": parameters, "resources": resources, "outputs": {}}
    values = {"name": {"value": "vm"}, "secret": {"value": "hush"}}
    return {"properties": {"mode": "Incremental", "template": template, "parameters": values}}


def test_a_deployment_makes_its_parts_in_order_and_ends_with_the_last() -> None:
    azure = Asker()
    azure.group()
    path = azure.inside("Microsoft.Resources/deployments/one")
    assert azure.ask("PUT", path, deployment(azure)).status == 201
    assert azure.ask("GET", path).body["properties"]["provisioningState"] == "Running"
    with pytest.raises(Refused, match="DeploymentActive"):
        azure.ask("PUT", path, deployment(azure))
    azure.pass_time(2)
    told = azure.ask("GET", path).body["properties"]
    assert told["provisioningState"] == "Succeeded"
    assert azure.ask("PUT", path, deployment(azure)).status == 201  # and again it makes nothing new
    azure.pass_time(2)
    assert azure.done == [("create", "vm")]
    assert "hush" not in str(told)
    assert azure.power() == "running"


def test_a_deployment_whose_part_is_refused_fails_with_the_parts_own_code() -> None:
    azure = Asker()
    azure.group()
    body = deployment(azure, location="nowhere")
    path = azure.inside("Microsoft.Resources/deployments/one")
    with pytest.raises(Refused) as refused:
        azure.ask("POST", f"{path}/validate", body)
    assert refused.value.details[0]["code"] == "LocationNotAvailableForResourceType"
    azure.ask("PUT", path, body)
    azure.pass_time(1)
    error = azure.ask("GET", path).body["properties"]["error"]
    assert (error["code"], error["details"][0]["code"]) == ("DeploymentFailed", "LocationNotAvailableForResourceType")


def test_in_bad_weather_the_reason_of_a_failed_deployment_is_a_text() -> None:
    azure = Asker(FORECASTS["hostile"])
    azure.group()
    path = azure.inside("Microsoft.Resources/deployments/one")
    azure.ask("PUT", path, deployment(azure, location="nowhere"))
    azure.pass_time(1)
    (part,) = azure.ask("GET", path).body["properties"]["error"]["details"]
    assert part["code"] == "Conflict"
    assert json.loads(part["message"])["error"]["code"] == "LocationNotAvailableForResourceType"


def test_a_token_is_good_for_whom_it_was_given_until_it_expires() -> None:
    cloud = state.fresh(Weather())
    token = tokens.issue(cloud, "app", "person", "https://x/", 1000)["access_token"]
    assert tokens.read(cloud, f"Bearer {token}", 1001)["oid"] == "person"
    with pytest.raises(Refused, match="ExpiredAuthenticationToken"):
        tokens.read(cloud, f"Bearer {token}", 1000 + tokens.LIFETIME_S + 1)
    for foreign in (token[:-2] + "xx", "a.b.c", "abc"):
        with pytest.raises(Refused, match="InvalidAuthenticationToken"):
            tokens.read(cloud, f"Bearer {foreign}", 1001)
    with pytest.raises(Refused, match="AuthenticationFailed"):
        tokens.read(cloud, "", 1001)


def test_the_memory_of_a_twin_comes_back_as_it_was(tmp_path: Path) -> None:
    azure = Asker(Weather(seed=7))
    azure.ready_vm(priority="Spot")
    azure.ask("POST", azure.path("vm", "simulateEviction"))
    file = tmp_path / "cloud.json"
    state.save(file, azure.cloud)
    assert state.load(file) == azure.cloud
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_damaged_memory_is_not_overwritten_but_reported(tmp_path: Path) -> None:
    file = tmp_path / "cloud.json"
    assert state.load(file) is None
    file.write_text('{"tenant": ')
    with pytest.raises(TwinFailed, match=r"cloud\.json"):
        state.load(file)


def test_chores_of_one_machine_wait_for_each_other_but_not_for_a_command() -> None:
    cloud = state.fresh(Weather())
    orders = [("1", "a", "create"), ("2", "a", "run"), ("3", "b", "create"), ("4", "a", "power_off")]
    cloud = cloud.order(*(Chore(id, machine, verb) for id, machine, verb in orders))
    assert [chore.id for chore in ready(cloud, set())] == ["1", "3"]
    without = replace(cloud, chores={key: one for key, one in cloud.chores.items() if key != "1"})
    assert [chore.id for chore in ready(without, {"2"})] == ["3", "4"]

"""What Azure refuses the twin refuses: wrong bodies, sizes that cannot boot, versions that there are not."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from twinasks import IMAGE, KEY, Asker

from stoker.twin.arm import forms
from stoker.twin.arm.vms import extensions
from stoker.twin.refusal import Refused
from stoker.twin.state import name_uuid
from stoker.twin.time.weather import Weather
from stoker.twin.web import odata

READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
SPOT: dict[str, Any] = {"priority": "Spot", "billingProfile": {"maxPrice": -1}}
Body = dict[str, Any]


@pytest.fixture
def azure() -> Asker:
    azure = Asker()
    azure.group()
    azure.network()
    return azure


def changed(azure: Asker, change: Callable[[Body], Any], size: str = "Standard_D4s_v5", **more: Any) -> None:
    body = azure.vm_body("vm", size, **more)
    change(body["properties"])
    azure.ask("PUT", azure.path(), body)


def login(**changes: Any) -> Callable[[Body], Any]:
    return lambda body: body["osProfile"].update(changes)


def keys(*given: Body) -> Callable[[Body], Any]:
    return lambda body: body["osProfile"]["linuxConfiguration"].update(ssh={"publicKeys": list(given)})


def image(**changes: str) -> Callable[[Body], Any]:
    return lambda body: body["storageProfile"].update(imageReference={**IMAGE, **changes})


def disk(**changes: Any) -> Callable[[Body], Any]:
    return lambda body: body["storageProfile"]["osDisk"].update(changes)


def passwords(body: Body, password: str | None) -> None:
    body["osProfile"].pop("linuxConfiguration")
    if password is not None:
        body["osProfile"]["adminPassword"] = password


AUTHORIZED = "/home/me/.ssh/authorized_keys"
TOO_LONG = base64.b64encode(b"x" * 65_536).decode()


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (
            image(sku="no-such"),
            "PlatformImageNotFound: The platform image 'Canonical:.*:no-such:latest' is not available",
        ),
        (image(version="1.2.3"), "PlatformImageNotFound"),
        (lambda body: body["storageProfile"].pop("imageReference"), "InvalidParameter: .*imageReference' is missing"),
        (login(adminUsername="admin"), "InvalidParameter: The Admin Username specified is not allowed"),
        (login(adminUsername=""), "InvalidParameter: .*adminUsername' is missing"),
        (login(computerName="no_underscores"), "InvalidParameter: Linux host name cannot exceed 64"),
        (login(computerName="x" * 65), "InvalidParameter: Linux host name cannot exceed 64"),
        (login(customData="not base64!"), "InvalidParameter: Custom data in OSProfile must be in Base64"),
        (login(customData=TOO_LONG), "InvalidParameter: Custom data .* maximum length of 87380"),
        (keys(), "InvalidParameter: Authentication using either SSH or by user name and password"),
        (keys({"path": AUTHORIZED, "keyData": "ssh-rsa AAAA"}), "InvalidParameter: .*publicKeys.keyData is invalid"),
        (keys({"path": "/elsewhere/x", "keyData": KEY}), "InvalidParameter: Destination path for SSH public keys"),
        (lambda body: passwords(body, None), "InvalidParameter: .*adminPassword' is missing"),
        (lambda body: passwords(body, "password"), "InvalidParameter: The supplied password must be"),
        (disk(diskSizeGB=10), "ResizeDiskError: The specified disk size 10 GB is smaller"),
        (disk(managedDisk={"storageAccountType": "Premium"}), "InvalidParameter: The value 'Premium'"),
        (lambda body: body.update(priority="Cheap"), "InvalidParameter: The value 'Cheap' of parameter priority"),
        (lambda body: body.update(evictionPolicy="Delete"), "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines"),
        (lambda body: body.update(SPOT, evictionPolicy="Sell"), "InvalidParameter: The value 'Sell'"),
        (lambda body: body.update(priority="Spot", billingProfile={"maxPrice": 0}), "MaxPriceValueInvalid"),
        (lambda body: body.update(priority="Spot", billingProfile={"maxPrice": -2}), "MaxPriceValueInvalid"),
        (lambda body: body.update(priority="Spot", billingProfile={"maxPrice": 0.123456}), "MaxPriceValueInvalid"),
        (
            lambda body: body.update(SPOT, scheduledEventsProfile={"terminateNotificationProfile": {"enable": True}}),
            "InvalidParameter: Terminate notifications cannot be enabled on Spot",
        ),
        (
            lambda body: body.update(securityProfile={"securityType": "Standard"}),
            "InvalidParameter: The value of parameter securityProfile.securityType is invalid",
        ),
        (login(customData="é"), "InvalidParameter: Custom data in OSProfile must be in Base64"),
        (disk(createOption="Borrow"), "InvalidParameter: The value 'Borrow' of parameter osDisk.createOption"),
        (disk(deleteOption="Keep"), "InvalidParameter: The value 'Keep' of parameter osDisk.deleteOption"),
        (
            lambda body: body["storageProfile"].update(dataDisks=[{"lun": 64, "createOption": "Empty"}]),
            "InvalidParameter: The value '64' of parameter dataDisk.lun",
        ),
        (
            lambda body: body["storageProfile"].update(dataDisks=[{"lun": 0, "createOption": "Empty"}]),
            "InvalidParameter: .*diskSizeGB' is missing",
        ),
        (
            lambda body: body.update(securityProfile={"securityType": "Moat"}),
            "InvalidParameter: The value 'Moat' of parameter securityProfile.securityType",
        ),
        (
            lambda body: body["networkProfile"]["networkInterfaceConfigurations"][0].update(properties={}),
            "InvalidParameter: .*ipConfigurations' is missing",
        ),
        (
            lambda body: body["networkProfile"].pop("networkApiVersion"),
            "InvalidParameter: .*networkApiVersion' is missing",
        ),
        (
            lambda body: body["hardwareProfile"].update(vm_size="Standard_D4s_v5"),
            "InvalidRequestContent: .*Could not find member 'vm_size' on object of type 'HardwareProfile'",
        ),
        (
            lambda body: body.update(billingProfile={"maxPrice": "cheap"}),
            "InvalidRequestContent: .*Error converting value \"cheap\" to type 'System.Double'",
        ),
    ],
)
def test_a_wrong_vm_is_refused_with_azures_code_and_leaves_nothing(
    azure: Asker, change: Callable[[Body], Any], refusal: str
) -> None:
    before = azure.kinds()
    with pytest.raises(Refused, match=refusal):
        changed(azure, change)
    assert azure.kinds() == before


def test_the_security_type_standard_is_taken_since_the_version_that_knows_it(azure: Asker) -> None:
    body = azure.vm_body("vm", securityProfile={"securityType": "Standard"})
    azure.ask("PUT", azure.path(), body, **{"api-version": "2025-11-01"})
    assert "virtualMachines" in azure.kinds()


@pytest.mark.parametrize(
    ("size", "change", "refusal"),
    [
        ("Standard_A2_v2", disk(), "BadRequest: The selected VM size .* cannot boot Hypervisor Generation '2'"),
        ("Standard_NC24ads_A100_v4", image(sku="22_04-lts"), "BadRequest: .* cannot boot Hypervisor Generation '1'"),
        ("Standard_D2ps_v5", disk(), "BadRequest: .*only supports a CPU Architecture of 'Arm64'"),
        ("Standard_D2s_v5", image(sku="22_04-lts-arm64"), "BadRequest: .*CPU Architecture of 'x64'"),
        (
            "Standard_D2_v5",
            disk(managedDisk={"storageAccountType": "Premium_LRS"}),
            "InvalidParameter: .*Standard_D2_v5 does not support the storage account type Premium_LRS",
        ),
        ("Standard_DC2as_v5", disk(), "BadRequest: .*with '<NULL>' security type"),
        ("Basic_A0", lambda body: body.update(SPOT), "AzureSpotIsNotSupportedForThisVMSize"),
        ("Standard_NC6s_v3", disk(), "SkuNotAvailable"),
        ("Standard_B1s", disk(), "SkuNotAvailable"),
        (
            "Standard_A2_v2",
            lambda body: (
                body["networkProfile"]["networkInterfaceConfigurations"][0]["properties"].update(
                    enableAcceleratedNetworking=True
                )
                or image(sku="22_04-lts")(body)
            ),
            "VMSizeIsNotPermittedToEnableAcceleratedNetworking",
        ),
    ],
)
def test_a_size_that_cannot_boot_what_it_is_given_is_refused(
    azure: Asker, size: str, change: Callable[[Body], Any], refusal: str
) -> None:
    with pytest.raises(Refused, match=refusal):
        changed(azure, change, size)


@pytest.mark.parametrize(("size", "sku"), [("Standard_A2_v2", "22_04-lts"), ("Standard_D2ps_v5", "22_04-lts-arm64")])
def test_a_size_boots_an_image_of_its_own_kind(azure: Asker, size: str, sku: str) -> None:
    changed(azure, image(sku=sku), size)
    azure.pass_time(2)
    assert azure.power() == "running"


def test_null_is_as_good_as_missing(azure: Asker) -> None:
    changed(azure, disk(managedDisk={"storageAccountType": None}, name=None))
    azure.pass_time(2)
    assert azure.power() == "running"


def test_states_of_all_vms_are_had_by_status_only_and_not_by_expanding_the_list(azure: Asker) -> None:
    azure.ready_vm(tags={"mine": "yes"})
    place = "/providers/Microsoft.Compute/virtualMachines"
    with pytest.raises(Refused, match=r"^InvalidParameter: \$expand=instanceView"):
        azure.ask("GET", place, _expand="instanceView")
    (state,) = azure.ask("GET", place, statusOnly="true").body["value"]
    assert state["properties"]["instanceView"]["statuses"][-1]["code"] == "PowerState/running"
    assert "tags" not in state
    assert "hardwareProfile" not in state["properties"]
    (model,) = azure.ask("GET", place).body["value"]
    assert (model["tags"], "instanceView" in model["properties"]) == ({"mine": "yes"}, False)


@pytest.mark.parametrize(
    ("path", "code", "listed"),
    [
        ("/resourceGroups/g", "InvalidApiVersionParameter", "2024-03-01"),
        ("/providers/Microsoft.Compute/virtualMachines", "NoRegisteredProviderFound", "2024-07-01, 2024-11-01"),
        ("/providers/Microsoft.Network/virtualNetworks", "NoRegisteredProviderFound", "2024-05-01"),
        ("/providers/Microsoft.Compute/skus", "NoRegisteredProviderFound", "2021-07-01"),
    ],
)
def test_a_version_that_there_is_not_is_refused_with_those_that_there_are(
    azure: Asker, path: str, code: str, listed: str
) -> None:
    with pytest.raises(Refused, match=f"{code}.*2999-01-01.*{listed}"):
        azure.ask("GET", path, version="2999-01-01")


def test_a_part_of_a_template_is_held_to_its_version_and_its_fields(azure: Asker) -> None:
    network = {
        "type": "Microsoft.Network/virtualNetworks",
        "apiVersion": "2999-01-01",
        "name": "other",
        "location": "westeurope",
        "properties": {"addressSpace": {"addressPrefixes": ["10.1.0.0/16"]}},
    }
    place = azure.inside("Microsoft.Resources/deployments") + "/d/validate"
    for change, refusal in (
        ({}, "NoRegisteredProviderFound"),
        ({"apiVersion": "2024-05-01", "properties": {"addresses": []}}, "InvalidRequestContent"),
    ):
        template = {"resources": [{**network, **change}]}
        with pytest.raises(Refused, match="InvalidTemplateDeployment") as told:
            azure.ask("POST", place, {"properties": {"template": template, "mode": "Incremental"}})
        assert told.value.details[0]["code"] == refusal


def rule(name: str, priority: Any, direction: str = "Inbound") -> Body:
    has = {"priority": priority, "direction": direction, "access": "Allow", "protocol": "Tcp"}
    return {"name": name, "properties": has}


def test_rules_have_a_priority_of_their_own_in_each_direction(azure: Asker) -> None:
    place = azure.inside("Microsoft.Network/networkSecurityGroups") + "/rules"

    def put(*rules: Body) -> int:
        return azure.ask("PUT", place, {"location": "westeurope", "properties": {"securityRules": list(rules)}}).status

    for wrong in (99, 4097):
        with pytest.raises(Refused, match=f"^SecurityRuleInvalidPriority: .* {wrong} "):
            put(rule("a", wrong))
    with pytest.raises(Refused, match=r"^SecurityRuleConflict: .*\bb\b.*\ba\b"):
        put(rule("a", 100), rule("b", 100))
    assert put(rule("a", 100), rule("b", 100, "Outbound")) == 201
    with pytest.raises(Refused, match="SecurityRuleConflict"):
        azure.ask("PUT", f"{place}/securityRules/c", rule("c", 100))


def test_what_a_network_interface_refers_to_is_in_its_region(azure: Asker) -> None:
    subnet = azure.network()
    nic = azure.inside("Microsoft.Network/networkInterfaces") + "/nic"
    body = {"properties": {"ipConfigurations": [{"name": "ip", "properties": {"subnet": {"id": subnet}}}]}}
    with pytest.raises(Refused, match=r"InvalidResourceReference.*same region"):
        azure.ask("PUT", nic, {"location": "eastus", **body})
    assert azure.ask("PUT", nic, {"location": "westeurope", **body}).status == 201


def test_subnets_lie_inside_their_network_and_beside_each_other(azure: Asker) -> None:
    place = azure.inside("Microsoft.Network/virtualNetworks/net/subnets")
    with pytest.raises(Refused, match="NetcfgSubnetRangeOutsideVnet"):
        azure.ask("PUT", f"{place}/far", {"properties": {"addressPrefix": "192.168.0.0/24"}})
    with pytest.raises(Refused, match="NetcfgSubnetRangesOverlap"):
        azure.ask("PUT", f"{place}/same", {"properties": {"addressPrefix": "10.0.0.128/25"}})
    assert azure.ask("PUT", f"{place}/next", {"properties": {"addressPrefix": "10.0.1.0/24"}}).status == 201


@pytest.mark.parametrize(
    ("tags", "refusal"),
    [
        ({f"t{number}": "" for number in range(51)}, "TooManyTags"),
        ({"a/b": "c"}, "InvalidTagNameCharacters"),
        ({"a": "x" * 257}, "InvalidTagValueLength"),
    ],
)
def test_tags_have_limits(azure: Asker, tags: dict[str, str], refusal: str) -> None:
    with pytest.raises(Refused, match=refusal):
        azure.ask("PUT", "/resourceGroups/h", {"location": "westeurope", "tags": tags})


def test_tags_have_the_same_limits_where_they_are_changed_by_themselves(azure: Asker) -> None:
    place = "/resourceGroups/g/providers/Microsoft.Resources/tags/default"

    def merge(tags: Any) -> int:
        return azure.ask("PATCH", place, {"operation": "Merge", "properties": {"tags": tags}}).status

    assert merge({f"t{number}": "" for number in range(40)}) == 200
    with pytest.raises(Refused, match=r"^TooManyTags: .*\b51\b"):
        merge({f"u{number}": "" for number in range(11)})
    with pytest.raises(Refused, match="InvalidTagNameCharacters"):
        azure.ask("PUT", place, {"properties": {"tags": {"a/b": "c"}}})
    with pytest.raises(Refused, match="InvalidRequestContent"):
        merge(["a"])


HOSTILE: tuple[Any, ...] = (None, "", -1, 1e308, True, [], {}, [1], [{}], [[]], {"id": "x"}, "é", "\x00", 10**30)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key)
        yield from places(one, (*path, key))


def spoilt(body: Body) -> Iterator[Body]:
    """The body with one thing in it left out, or replaced by what does not belong there."""
    for path in places(body):
        for value in ("left out", *HOSTILE):
            copy = json.loads(json.dumps(body))
            inner = copy
            for word in path[:-1]:
                inner = inner[word]
            if value == "left out":
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield copy


def bodies(azure: Asker) -> Iterator[tuple[str, str, Body]]:
    """One right request of each kind: its method, path and body."""
    vm = azure.vm_body("new", **SPOT, evictionPolicy="Delete")
    vm["identity"] = {"type": "SystemAssigned"}
    yield "PUT", azure.path("new"), vm
    profile = json.loads(json.dumps(vm["properties"]))
    profile.pop("hardwareProfile")
    profile["osProfile"]["computerNamePrefix"] = profile["osProfile"].pop("computerName")
    script: Body = {"publisher": "Microsoft.Azure.Extensions", "type": "CustomScript", "typeHandlerVersion": "2.1"}
    script["settings"] = {"commandToExecute": "true", "fileUris": ["https://example.org/x"]}
    profile["extensionProfile"] = {"extensions": [{"name": "e", "properties": script}]}
    kind: Body = {"orchestrationMode": "Flexible", "platformFaultDomainCount": 1, "virtualMachineProfile": profile}
    sku = {"name": "Standard_D4s_v5", "capacity": 1}
    of_set = {"location": "westeurope", "sku": sku, "properties": kind}
    yield "PUT", azure.inside("Microsoft.Compute/virtualMachineScaleSets/set"), of_set
    yield "PUT", azure.path("vm", "extensions/e"), {"location": "westeurope", "properties": script}
    yield "POST", azure.path("vm", "runCommand"), {"commandId": "RunShellScript", "script": [""], "parameters": [{}]}
    disks = {"dataDisksToAttach": [{"diskId": "x", "lun": 0}], "dataDisksToDetach": [{"diskId": "x"}]}
    yield "POST", azure.path("vm", "attachDetachDataDisks"), disks
    rules = {"location": "westeurope", "properties": {"securityRules": [rule("a", 100)]}}
    yield "PUT", azure.inside("Microsoft.Network/networkSecurityGroups/rules"), rules
    network = {"addressSpace": {"addressPrefixes": ["10.1.0.0/16"]}}
    of_network = {"location": "westeurope", "properties": network}
    yield "PUT", azure.inside("Microsoft.Network/virtualNetworks/other"), of_network
    tags = {"operation": "Merge", "properties": {"tags": {"a": "b"}}}
    yield "PATCH", "/resourceGroups/g/providers/Microsoft.Resources/tags/default", tags
    given = {"roleDefinitionId": f"/x/{READER}", "principalId": "me", "principalType": "User"}
    role = f"/resourceGroups/g/providers/Microsoft.Authorization/roleAssignments/{name_uuid('r')}"
    yield "PUT", role, {"properties": given}
    part = {"type": "Microsoft.Network/virtualNetworks", "apiVersion": "2024-05-01", "name": "n", **of_network}
    template: Body = {"parameters": {"p": {"type": "string"}}, "variables": {}, "resources": [part], "outputs": {}}
    deployment = {"properties": {"template": template, "parameters": {"p": {"value": "a"}}, "mode": "Incremental"}}
    yield "PUT", azure.inside("Microsoft.Resources/deployments/d"), deployment
    yield "POST", azure.inside("Microsoft.Resources/deployments/d/validate"), deployment


def test_whatever_is_in_a_body_it_is_answered_or_refused(azure: Asker) -> None:
    azure.ready_vm()
    before = azure.cloud
    for method, path, body in bodies(azure):
        for wrong in spoilt(body):
            azure.cloud = before
            with suppress(Refused):
                azure.ask(method, path, wrong)
                azure.pass_time(3)


def test_what_stands_somewhere_says_where(azure: Asker) -> None:
    body = azure.vm_body("vm")
    del body["location"]
    with pytest.raises(Refused, match="LocationRequired"):
        azure.ask("PUT", azure.path(), body)


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("/resourceGroups/a!b", "InvalidResourceGroup"),
        (f"/resourceGroups/{'x' * 91}", "InvalidResourceGroup"),
        (f"/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/{'x' * 81}", "InvalidResourceName"),
        ("/providers/Microsoft.Authorization/roleAssignments/mine", "InvalidRoleAssignmentId"),
        (f"/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/{'x' * 65}", "InvalidParameter"),
    ],
)
def test_names_have_their_letters_and_lengths(azure: Asker, path: str, refusal: str) -> None:
    body = azure.vm_body("vm") if "virtualMachines" in path else {"location": "westeurope"}
    with pytest.raises(Refused, match=refusal):
        azure.ask("PUT", path, body)


def test_a_disk_belongs_to_one_vm_at_a_time(azure: Asker) -> None:
    azure.ready_vm("one")
    azure.ready_vm("two")
    place = azure.inside("Microsoft.Compute/disks/data")
    given = {"creationData": {"createOption": "Empty"}, "diskSizeGB": 64}
    assert azure.ask("PUT", place, {"location": "westeurope", "properties": given}).status == 202
    id = f"/subscriptions/{azure.cloud.subscription}{place}"
    storage = {"dataDisks": [{"lun": 0, "createOption": "Attach", "managedDisk": {"id": id}}]}

    def attach(vm: str, disks: Body) -> int:
        return azure.ask("PATCH", azure.path(vm), {"properties": {"storageProfile": disks}}).status

    assert attach("one", storage) == 200
    with pytest.raises(Refused, match=r"^ConflictingUserInput: .*/one"):
        attach("two", storage)
    assert attach("one", {"dataDisks": []}) == 200
    with pytest.raises(Refused, match="AttachDiskWhileBeingDetached"):
        attach("two", storage)
    azure.pass_time(1)
    assert attach("two", storage) == 200
    assert azure.ask("GET", place).body["managedBy"].endswith("/two")


def test_a_role_requires_a_known_principal_or_its_type(azure: Asker) -> None:
    kind = "/resourceGroups/g/providers/Microsoft.Authorization/roleAssignments"
    given = {"roleDefinitionId": f"/x/{READER}", "principalId": name_uuid("nobody")}
    with pytest.raises(Refused, match=r"PrincipalNotFound.*principalType property"):
        azure.ask("PUT", f"{kind}/{name_uuid(1)}", {"properties": given})
    said = {**given, "principalType": "ServicePrincipal"}
    assert azure.ask("PUT", f"{kind}/{name_uuid(1)}", {"properties": said}).status == 201
    place = azure.inside("Microsoft.ManagedIdentity/userAssignedIdentities") + "/somebody"
    made = azure.ask("PUT", place, {"location": "westeurope"}).body["properties"]["principalId"]
    known = {"properties": {**given, "principalId": made}}
    assert azure.ask("PUT", f"{kind}/{name_uuid(2)}", known).status == 201


def test_in_hostile_weather_a_new_role_and_a_new_principal_are_unknown_for_a_while() -> None:
    azure = Asker(Weather(roles_spread_s=5))
    azure.group()
    kind = "/resourceGroups/g/providers/Microsoft.Authorization/roleAssignments"
    place = azure.inside("Microsoft.ManagedIdentity/userAssignedIdentities") + "/somebody"
    made = azure.ask("PUT", place, {"location": "westeurope"}).body["properties"]["principalId"]
    given = {"roleDefinitionId": f"/x/{READER}", "principalId": made}
    with pytest.raises(Refused, match="PrincipalNotFound"):
        azure.ask("PUT", f"{kind}/{name_uuid(1)}", {"properties": given})
    azure.ask("PUT", f"{kind}/{name_uuid(1)}", {"properties": {**given, "principalType": "ServicePrincipal"}})
    azure.claims = {"appid": "app", "oid": made}
    with pytest.raises(Refused, match="AuthorizationFailed"):
        azure.ask("GET", "/resourceGroups/g")
    azure.pass_time(5)
    assert azure.ask("GET", "/resourceGroups/g").status == 200


def test_in_hostile_weather_a_new_definition_of_a_role_cannot_be_assigned_for_a_while() -> None:
    azure = Asker(Weather(roles_spread_s=5))
    azure.group()
    role = f"/providers/Microsoft.Authorization/roleDefinitions/{name_uuid(7)}"
    azure.ask("PUT", role, {"properties": {"roleName": "mine", "permissions": [{"actions": ["*/read"]}]}})
    given = {"roleDefinitionId": role, "principalId": name_uuid(8), "principalType": "User"}
    assigned = f"/resourceGroups/g/providers/Microsoft.Authorization/roleAssignments/{name_uuid(1)}"
    with pytest.raises(Refused, match="RoleDefinitionDoesNotExist"):
        azure.ask("PUT", assigned, {"properties": given})
    azure.pass_time(5)
    assert azure.ask("PUT", assigned, {"properties": given}).status == 201


def test_in_hostile_weather_operations_take_their_time() -> None:
    azure = Asker(Weather(stretch=10))
    azure.ready_vm()
    assert azure.power() == "starting"
    azure.pass_time(4)
    assert azure.power() == "running"


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/providers/Microsoft.Compute/diskAccesses", "Microsoft.Compute/disks"),
        ("/providers/Microsoft.Network/virtualNetworkGateways", "Microsoft.Network/virtualNetworks"),
        (
            "/resourceGroups/g/providers/Microsoft.Compute/availabilitySets/near",
            "Microsoft.Compute/disks",
        ),
    ],
)
def test_what_the_twin_has_not_is_reported_with_the_nearest_that_it_has(azure: Asker, path: str, nearest: str) -> None:
    with pytest.raises(Refused, match=f"^InvalidResourceType: .*'{nearest}'"):
        azure.ask("GET", path)


@pytest.mark.parametrize("word", ["availabilitySet", "host"])
def test_where_a_machine_is_to_stand_is_refused_and_not_passed_over(azure: Asker, word: str) -> None:
    with pytest.raises(Refused, match=f"^InvalidResourceReference: .*'{word}'"):
        changed(azure, lambda body: body.update({word: {"id": "/subscriptions/s/near"}}))


def test_an_action_that_the_twin_has_not_is_reported_with_those_that_it_has(azure: Asker) -> None:
    azure.ready_vm()
    with pytest.raises(Refused, match=r"^MethodNotAllowed: .*/reimage'.*deallocate"):
        azure.ask("POST", azure.path("vm", "reimage"))


def test_restrictions_of_a_zone_and_of_a_subscription_are_listed_and_held_to(azure: Asker) -> None:
    listed = {
        one["name"]: one
        for one in azure.ask("GET", "/providers/Microsoft.Compute/skus", _filter="location eq 'eastus'").body["value"]
    }
    closed, _ = listed["Standard_B1s"]["restrictions"]
    assert (closed["type"], closed["reasonCode"]) == ("Location", "NotAvailableForSubscription")
    (some,) = listed["Standard_NC24ads_A100_v4"]["restrictions"]
    assert (some["type"], some["restrictionInfo"]["zones"]) == ("Zone", ["1", "3"])
    body = {**azure.vm_body("vm", "Standard_NC24ads_A100_v4"), "location": "eastus", "zones": ["1"]}
    with pytest.raises(Refused, match="SkuNotAvailable"):
        azure.ask("PUT", azure.path(), body)


EXTENSION = {"publisher": "Microsoft.Azure.Extensions", "type": "CustomScript", "typeHandlerVersion": "2.1"}
NVIDIA = {"publisher": "Microsoft.HpcCompute", "type": "NvidiaGpuDriverLinux", "typeHandlerVersion": "1.10"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (EXTENSION, "'commandToExecute' and 'script' were both not specified"),
        ({**EXTENSION, "settings": {"commandToExecute": "true", "script": "dHJ1ZQ=="}}, "were both specified"),
        ({**EXTENSION, "settings": {"script": "not base64"}}, "'script' must be base64"),
        (NVIDIA, "No NVIDIA GPU was found"),
    ],
)
def test_an_extension_that_cannot_do_what_it_is_told_fails(azure: Asker, given: Body, why: str) -> None:
    azure.ready_vm()
    answer = azure.ask("PUT", azure.path("vm", "extensions/one"), {"properties": given})
    azure.pass_time(1)
    operation = azure.cloud.operations[answer.headers["Azure-AsyncOperation"].split("?")[0].rsplit("/", 1)[-1]]
    assert operation.error["code"] == "VMExtensionProvisioningError"
    assert why in operation.error["message"]


def test_an_extension_that_nobody_publishes_is_refused_with_the_nearest(azure: Asker) -> None:
    azure.ready_vm()
    given = {**EXTENSION, "type": "CustomScripts"}
    with pytest.raises(Refused, match=r"^ArtifactNotFound: .*'CustomScript'"):
        azure.ask("PUT", azure.path("vm", "extensions/one"), {"properties": given})


def test_a_driver_is_installed_where_there_is_such_a_gpu(azure: Asker) -> None:
    azure.ready_vm(size="Standard_NC4as_T4_v3")
    azure.ask("PUT", azure.path("vm", "extensions/driver"), {"properties": NVIDIA})
    azure.pass_time(1)
    assert (
        azure.ask("GET", azure.path("vm", "extensions/driver")).body["properties"]["provisioningState"] == "Succeeded"
    )


def test_the_forms_of_bodies_are_those_of_the_sdks() -> None:
    """Rewritten by `python -m stoker.twin.arm.forms`."""
    stored, fresh = json.loads(forms.FILE.read_text()), forms.read()
    if stored["read_from"] == fresh["read_from"]:
        assert stored == fresh
    assert stored["forms"]["compute.BillingProfile"] == {"maxPrice": "number"}


@pytest.mark.parametrize("zipped", [False, True])
def test_a_custom_script_fetches_its_files_and_runs(tmp_path: Path, zipped: bool) -> None:
    (tmp_path / "part.txt").write_text("fetched")
    text = b"#!/bin/sh\ncat part.txt && exit 3\n"
    script = base64.b64encode(gzip.compress(text) if zipped else text).decode()
    settings = {"script": script, "fileUris": [f"file://{tmp_path}/part.txt"]}
    run = subprocess.run(["sh", "-c", extensions.script({"settings": settings})], capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("fetched", 3)


def test_a_custom_script_whose_files_cannot_be_fetched_does_not_run(tmp_path: Path) -> None:
    settings = {"commandToExecute": f"touch {tmp_path}/ran", "fileUris": [f"file://{tmp_path}/missing"]}
    run = subprocess.run(["sh", "-c", extensions.script({"settings": settings})], capture_output=True, text=True)
    assert run.returncode != 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, template:{"b": [1, 2,], }}', {"a": 1, "template": {"b": [1, 2]}}),
        ('{// said\n "a": "http://x" /* more */}', {"a": "http://x"}),
        ("{'a': 'it''s'}".replace("''", "\\'"), {"a": "it's"}),
        ('{"a": "one\ntwo"}', {"a": "one\ntwo"}),
        ("{\"a\": \"[concat('b', 'c')]\"}", {"a": "[concat('b', 'c')]"}),
    ],
)
def test_json_is_read_as_leniently_as_azure_reads_it(text: str, value: Any) -> None:
    assert odata.loads(text) == value


@pytest.mark.parametrize("text", ["{", "{a}", '{"a": }', '"open', "[" * 5000, "[" * 101 + "]" * 101])
def test_what_is_no_json_at_all_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        odata.loads(text)

"""A VM removes itself as configured at its start: with a token of its own metadata service, until it is done."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest
import test_azure_provider as alone

from services import Azurite
from stoker.providers.azure import node as release
from stoker.providers.azure.cloud import FORCED
from stoker.providers.azure.node import Release
from stoker.testing.twin import TwinHandle, twin
from stoker.twin import rights
from stoker.twin.machines.metadata import NO_EVENTS, MetadataSubject, serve
from stoker.twin.world import machine_token

IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwinHandle]:
    with twin(tmp_path_factory.mktemp("twin"), speed=10) as handle:
        yield handle


class Leaver(alone.TestAzureProvider):
    """Somebody whose one node, spot or on demand, is about to remove itself."""

    __test__ = False

    def __init__(self, cloud: TwinHandle, azurite: Azurite, folder: Path) -> None:
        self.cloud, self.azurite, self.container = cloud, azurite, azurite.new_container()
        self.azure, self.folder = self.make(folder), folder

    def node(self, *, spot: bool) -> str:
        """The id of its machine, once it runs."""
        request = self.request(self.folder, "r-1")
        assert request.offer
        self.azure.start(replace(request, offer=replace(request.offer, spot=spot)))
        self.up(self.azure, "r-1")
        return self.vm("r-1")

    def told(self, vm: str) -> dict[str, str]:
        """How it removes itself, from its custom data."""
        found = self.cloud.cloud.find(self.set_of(vm) or vm)
        assert found
        text = base64.b64decode(found.secret["osProfile"]["customData"]).decode()
        files = json.loads(text.removeprefix("#cloud-config\n"))["write_files"]
        given: dict[str, str] = json.loads(files[0]["content"])["release"]
        return given

    def admit_another(self, vm: str) -> None:
        """A policy of the organisation gives every VM an identity for monitoring, besides its own."""
        group, name = vm.split("/")[4], vm.rsplit("/", 1)[-1]
        other = f"{vm.split('/providers/')[0]}/providers/{IDENTITIES}/monitoring"
        self.azure._cloud.put_by_id(other, "2023-01-31", {"location": "eastus"})
        found = self.cloud.cloud.find(vm)
        assert found
        has = found.body["identity"]
        kind = "SystemAssigned, UserAssigned" if "SystemAssigned" in has["type"] else "UserAssigned"
        named: dict[str, dict[str, Any]] = {one: {} for one in (*has.get("userAssignedIdentities", {}), other)}
        body = {"identity": {"type": kind, "userAssignedIdentities": named}}
        self.azure._cloud._compute.virtual_machines.begin_update(group, name, body).result()

    @contextmanager
    def metadata(self, vm: str) -> Iterator[str]:
        """The address of the metadata service of this machine, for a process outside."""
        instance = self.cloud.cloud.instance(vm)
        assert instance

        def token(resource: str, *of: str) -> dict[str, Any]:
            return machine_token(self.cloud.cloud, instance.name, resource, time.time(), *of)

        subject = MetadataSubject(
            {"compute": {"resourceId": vm}}, lambda: NO_EVENTS, lambda _: None, token, lambda: None
        )
        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=partial(answering, listening, subject), daemon=True).start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"

    def refused_token(self, vm: str) -> str:
        """Its metadata service's response to a request without an identity."""
        with self.metadata(vm) as address, pytest.raises(HTTPError) as refused:
            url = f"{address}/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https%3A%2F%2Fx"
            urlopen(Request(url, headers={"Metadata": "true"}), timeout=10)
        assert refused.value.code == 400
        return str(json.load(refused.value)["error_description"])

    def deletions(self, vm: str) -> list[dict[str, Any]]:
        """The requests to delete the group of this VM."""
        group = f"/resourcegroups/{vm.split('/')[4]}".lower()
        asked: list[dict[str, Any]] = self.cloud.ask("requests")
        return [one for one in asked if one["method"] == "DELETE" and one["path"].lower().endswith(group)]


def answering(listening: socket.socket, subject: MetadataSubject) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # it is over
            return
        with connection:
            serve(subject, connection)


@pytest.fixture
def leaver(cloud: TwinHandle, azurite: Azurite, tmp_path: Path) -> Iterator[Leaver]:
    made = Leaver(cloud, azurite, tmp_path)
    yield made
    cloud.order("calm")
    cloud.wait(lambda _: alone.all_stopped(made.azure), 60)
    cloud.wait(lambda now: not [one for one in now.resources.values() if one.kind != rights.DEFINITIONS], 60)


def carried_out(leaver: Leaver, vm: str, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that it made."""
    monkeypatch.setattr(release, "WATCH_S", 0.05)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        threading.Event().wait(min(seconds, 0.05))

    with leaver.metadata(vm) as address:
        given = leaver.told(vm)
        here = {name: url.replace("http://169.254.169.254", address) for name, url in given.items()}
        Release(**here, ca_file=leaver.cloud.address.authority).carry_out(pause)
    return pauses


@pytest.mark.parametrize("spot", [True, False])
def test_a_node_that_was_given_a_second_identity_still_removes_itself(
    leaver: Leaver, spot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm = leaver.node(spot=spot)
    leaver.admit_another(vm)
    if spot:
        assert "please specify the clientId / resourceId" in leaver.refused_token(vm), "unless it names its own"
    carried_out(leaver, vm, monkeypatch)
    assert leaver.cloud.cloud.find(vm.split("/providers/")[0]) is None, "it has returned at the very end"


def test_whoever_deletes_the_group_of_a_node_forces_its_machines(leaver: Leaver) -> None:
    """Neither the server nor the VM itself pays for a clean shutdown of what nobody needs."""
    vm = leaver.node(spot=True)
    own = parse_qs(urlsplit(leaver.told(vm)["url"]).query)
    assert own["forceDeletionTypes"] == [FORCED]
    leaver.azure.stop("r-1")
    (deleted,) = leaver.deletions(vm)
    assert deleted["query"]["forceDeletionTypes"] == FORCED
    assert "Microsoft.Compute/virtualMachines" in FORCED.split(",")


def test_a_refusal_while_a_role_spreads_is_asked_for_again_by_the_machine(
    leaver: Leaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm = leaver.node(spot=True)
    group = vm.split("/providers/")[0]
    refusal = {"kind": "error", "status": 403, "code": "AuthorizationFailed", "message": "not yet"}
    leaver.cloud.order("fault", **refusal, method="DELETE", path=group.rsplit("/", 1)[-1], times=2)
    leaver.cloud.order("fault", **refusal, method="POST", path="/deallocate", times=2)
    pauses = carried_out(leaver, vm, monkeypatch)
    assert pauses[:2] == [1.0, 2.0]
    assert leaver.cloud.cloud.find(group) is None

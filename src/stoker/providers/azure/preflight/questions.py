"""The requests of a preflight: who is logged in, the state of the subscription, and whether a deployment is valid."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from stoker.errors import LoginFailed, NotFound
from stoker.providers.azure.account.clients import POLL_S, missing_error, speaking
from stoker.providers.azure.account.grounds import ground
from stoker.providers.azure.deployment.scaleset import SETS
from stoker.providers.azure.deployment.template import COMPUTE
from stoker.providers.azure.naming import NodePlace
from stoker.providers.azure.preflight.reading import Permission
from stoker.providers.azure.setup.cloud import SetupCloud

Json = dict[str, Any]


class Questions(SetupCloud):
    """None of these requests is billed."""

    def claims(self) -> Json:
        """The claims of the current login's token."""
        with speaking("logging in"):
            token = self._credential.get_token(f"{self._account.arm.rstrip('/')}/.default").token
        try:
            body = token.split(".")[1]
            found: Json = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (IndexError, ValueError) as error:
            raise LoginFailed("logging in: the token is unreadable", hint="az login") from error
        return found

    def clock_ahead(self) -> timedelta:
        """How far Azure's clock is ahead of this computer's, by the Date header of a response."""
        self.groups()
        return self._ahead

    def counts(self) -> tuple[int, int]:
        """How many resource groups and role assignments the subscription has in all."""
        with speaking("counting groups and role assignments"):
            groups = sum(1 for _ in self._resources.resource_groups.list())
            return groups, sum(1 for _ in self._authorization.role_assignments.list_for_subscription())

    def registration(self, namespace: str) -> str:
        with speaking(f"checking the service {namespace}"):
            found = self._resources.providers.get(namespace).registration_state
        return str(getattr(found, "value", found) or "NotRegistered")

    def image_there(self, region: str, image: str) -> bool:
        """`publisher:offer:sku:version`, or a resource id."""
        if image.startswith("/"):
            return self.get(image, "2024-03-03" if "/galleries/" in image else "2024-07-01") is not None
        publisher, offer, sku, version = image.split(":")
        with speaking(f"looking for the image {image} in {region}"):
            try:
                if version != "latest":
                    self._compute.virtual_machine_images.get(region, publisher, offer, sku, version)
                    return True
                return bool(list(self._compute.virtual_machine_images.list(region, publisher, offer, sku, top=1)))
            except missing_error():
                return False

    def permissions(self, group: str) -> list[Permission]:
        """What this login may do in a group, from all of its roles."""
        with speaking(f"checking the rights in {group}"):
            found = list(self._authorization.permissions.list_for_resource_group(group))
        return [Permission(tuple(one.actions or ()), tuple(one.not_actions or ())) for one in found]

    def evict(self, key: str) -> str:
        """Asks Azure to evict the VM of a node; it does so within half an hour. Returns what will restore it."""
        found = ground(self, self._account).found()
        vm = next((one.vm for one in found if one.marks.key == key and one.vm and not one.vm.deleting), None)
        if vm is None:
            raise NotFound(f"node {key} has no VM in Azure", hint="stoker ps")
        with speaking(f"evicting the VM of {key}"):
            self._compute.virtual_machines.simulate_eviction(vm.group, vm.name)
        return self._restoring(vm.group)

    def _restoring(self, group: str) -> str:
        for part in self.parts(group):
            if part.kind.lower() == SETS.lower():
                given = (self.get(part.id, COMPUTE) or {}).get("properties", {})
                policy = given.get("spotRestorePolicy") or {}
                if policy.get("enabled"):
                    lasts = str(policy.get("restoreTimeout", "an unknown time"))
                    minutes = re.fullmatch(r"PT(\d+)M", lasts)
                    return (
                        f"accepted by Azure: it tries to restore the VM for {f'{minutes[1]} min' if minutes else lasts}"
                    )
        return ""

    def validate(self, place: NodePlace, properties: Mapping[str, Any], custom_data: str) -> None:
        """Raises the error that a run would get. Azure runs all checks of a deployment, including policies and quotas,
        and creates nothing."""
        body = {"properties": {**properties, "parameters": {"customData": {"value": custom_data}}}}
        with speaking(f"validating a VM in {place.group}"):
            self._deployments.deployments.begin_validate(
                place.group, place.deployment, body, polling_interval=POLL_S
            ).result()

"""Who is in the twin's directory: logins that were made, and the identities of machines and resources."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.twin.state import Cloud

_ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"


@dataclass(frozen=True, slots=True)
class Person:
    object_id: str
    client_id: str
    name: str
    since: float  # a new one is known everywhere only after a while


def people(cloud: Cloud) -> list[Person]:
    found = [Person(one.object_id, one.client_id, one.name, float("-inf")) for one in cloud.principals.values()]
    for resource in cloud.resources.values():
        if resource.kind == _ASSIGNMENTS:
            continue
        own = resource.properties.get("principalId") or (resource.body.get("identity") or {}).get("principalId")
        if own:
            client = resource.properties.get("clientId") or own
            found.append(Person(str(own), str(client), resource.name, resource.created_at))
    return found

"""User-assigned managed identities."""

from __future__ import annotations

from stoker.twin.arm import generic
from stoker.twin.arm.ask import Answer, Ask, route
from stoker.twin.state import Cloud

IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"


@route("PUT", IDENTITIES)
def put(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    there = cloud.find(ask.id)
    properties = {
        "tenantId": cloud.tenant,
        "principalId": there.properties["principalId"] if there else ask.uuid("principal"),
        "clientId": there.properties["clientId"] if there else ask.uuid("client"),
    }
    return generic.store(cloud, ask, properties)


@route("DELETE", IDENTITIES)
def delete(cloud: Cloud, ask: Ask) -> tuple[Cloud, Answer]:
    """At once, unlike most."""
    there = cloud.find(ask.id)
    return (cloud.drop(there.id), Answer(200)) if there else (cloud, Answer(204))


generic.readable(IDENTITIES)
generic.taggable(IDENTITIES)

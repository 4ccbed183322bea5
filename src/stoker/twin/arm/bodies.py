"""Rules for all requests: api-versions, names, tags and types of fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin import ids, rights
from stoker.twin.arm import forms
from stoker.twin.arm.ask import Ask
from stoker.twin.market import catalog
from stoker.twin.refusal import Refused, invalid, unreadable

_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}(-preview|-alpha|-beta|-privatepreview)?$")

_COMPUTE = """2015-06-15 2016-03-30 2016-04-30-preview 2017-03-30 2017-12-01 2018-04-01 2018-06-01 2018-10-01 2019-03-01
2019-07-01 2019-12-01 2020-06-01 2020-12-01 2021-03-01 2021-04-01 2021-07-01 2021-11-01 2022-03-01 2022-08-01 2022-11-01
2023-03-01 2023-07-01 2023-09-01 2024-03-01 2024-07-01 2024-11-01 2025-04-01 2025-11-01 2026-03-01 2026-04-01"""
_DISKS = """2016-04-30-preview 2017-03-30 2018-04-01 2018-06-01 2018-09-30 2019-03-01 2019-07-01 2019-11-01 2020-05-01
2020-06-30 2020-09-30 2020-12-01 2021-04-01 2021-08-01 2021-12-01 2022-03-02 2022-07-02 2023-01-02 2023-04-02 2023-10-02
2024-03-02 2025-01-02 2026-03-02"""
_SKUS = "2016-03-30 2017-03-30 2017-09-01 2019-04-01 2021-07-01"
_NETWORK_VERSIONS = """
2015-06-15 2016-09-01 2017-10-01 2018-01-01 2018-08-01 2018-10-01 2018-11-01 2019-02-01 2019-09-01 2019-11-01
2019-12-01 2020-03-01 2020-05-01 2020-06-01 2020-07-01 2020-08-01 2020-11-01 2021-02-01 2021-03-01 2021-05-01 2021-08-01
2022-01-01 2022-05-01 2022-07-01 2022-09-01 2022-11-01 2023-02-01 2023-04-01 2023-05-01 2023-06-01 2023-09-01 2023-11-01
2024-01-01 2024-03-01 2024-05-01 2024-07-01 2024-10-01 2025-01-01 2025-03-01 2025-05-01 2025-07-01 2025-09-01 2026-01-01
2026-03-01"""
_RESOURCES = """
2014-04-01 2015-01-01 2015-11-01 2016-02-01 2016-06-01 2016-09-01 2017-05-10 2018-01-01 2018-02-01 2018-05-01
2019-03-01 2019-05-01 2019-05-10 2019-07-01 2019-08-01 2019-10-01 2020-01-01 2020-06-01 2020-08-01 2020-10-01 2021-01-01
2021-04-01 2022-01-01 2022-05-01 2022-06-01 2022-09-01 2022-12-01 2023-07-01 2023-08-01 2024-03-01 2024-07-01 2024-08-01
2024-11-01 2025-03-01 2025-04-01 2026-06-01"""
_IDENTITY_VERSIONS = """
2015-08-31-preview 2018-11-30 2021-09-30-preview 2022-01-31-preview 2023-01-31 2023-07-31-preview
2024-11-30 2025-01-31-preview 2025-05-31-preview"""
_ROLES = """2014-04-01-preview 2014-10-01-preview 2015-05-01-preview 2015-07-01 2017-10-01-preview 2018-01-01-preview
2018-05-01-preview 2018-07-01 2018-09-01-preview 2019-04-01-preview 2020-03-01-preview 2020-04-01-preview
2020-08-01-preview 2020-10-01-preview 2021-04-01-preview 2022-04-01 2022-05-01-preview"""
_POLICIES = """2018-05-01 2019-01-01 2019-06-01 2019-09-01 2020-03-01 2020-09-01 2021-06-01 2022-06-01 2023-04-01
2024-04-01 2024-05-01 2025-01-01 2025-03-01"""
_LOCKS = "2015-01-01 2015-05-01-preview 2016-09-01 2020-05-01"
_STORAGE = """
2015-06-15 2016-01-01 2016-12-01 2017-06-01 2017-10-01 2018-02-01 2018-07-01 2018-11-01 2019-04-01 2019-06-01
2020-08-01-preview 2021-01-01 2021-02-01 2021-04-01 2021-06-01 2021-08-01 2021-09-01 2022-05-01 2022-09-01 2023-01-01
2023-04-01 2023-05-01 2024-01-01 2025-01-01 2025-06-01 2025-08-01"""
_LEARNING = """
2022-02-01-preview 2022-05-01 2022-10-01 2022-10-01-preview 2023-02-01-preview 2023-04-01 2023-04-01-preview
2023-06-01-preview 2023-08-01-preview 2023-10-01 2024-01-01-preview 2024-04-01 2024-04-01-preview 2024-07-01-preview
2024-10-01 2024-10-01-preview 2025-01-01-preview"""
_BUDGETS = (
    "2018-10-01 2019-01-01 2019-05-01 2019-10-01 2021-05-01 2021-10-01 2023-03-01 2023-05-01 2023-11-01 2024-08-01"
)

# The longest matching prefix of a kind counts.
_KNOWN = {
    start: tuple(text.split())
    for start, text in (
        ("microsoft.compute", _COMPUTE),
        ("microsoft.compute/disks", _DISKS),
        ("microsoft.compute/skus", _SKUS),
        ("microsoft.compute/locations", f"{_COMPUTE} {_DISKS}"),
        ("microsoft.network", _NETWORK_VERSIONS),
        ("microsoft.resources", _RESOURCES),
        ("microsoft.managedidentity", _IDENTITY_VERSIONS),
        ("microsoft.authorization", _ROLES),
        ("microsoft.authorization/locks", _LOCKS),
        ("microsoft.authorization/policyassignments", _POLICIES),
        ("microsoft.storage", _STORAGE),
        ("microsoft.consumption", _BUDGETS),
        ("microsoft.machinelearningservices", _LEARNING),
    )
}
_OF_PROVIDERS = tuple(sorted({version for versions in _KNOWN.values() for version in versions}))


def check_form(ask: Ask) -> None:
    """The version is present and well-formed."""
    if not ask.version:
        raise invalid(
            "The api-version query parameter (?api-version=) is required for all requests.",
            "MissingApiVersionParameter",
        )
    if not _VERSION.match(ask.version):
        raise invalid(f"The api-version '{ask.version}' is invalid.", "InvalidApiVersionParameter")


def check(ask: Ask) -> None:
    """Azure has this version for the requested kind."""
    check_form(ask)
    known = versions_of(kind_of(ask.target))
    if ask.version not in known:
        raise _unknown(ask, known)


def versions_of(kind: str) -> tuple[str, ...]:
    """The versions of a kind, the oldest first."""
    starts = [start for start in _KNOWN if kind.lower() == start or kind.lower().startswith(f"{start}/")]
    return _KNOWN[max(starts, key=len)] if starts else _OF_PROVIDERS


def newest(id: str) -> str:
    """The newest version for this id."""
    return versions_of(kind_of(ids.read(id)))[-1]


def kind_of(target: ids.ResourceTarget) -> str:
    """A list has the kind of its last word; requests about a provider itself belong to Resource Manager."""
    if target.kind and "/" not in target.kind:
        return (
            f"{target.kind}/{target.tail}"
            if target.tail and target.tail.lower() not in ("register", "unregister")
            else "microsoft.resources"
        )
    return target.kind or "microsoft.resources"


def _unknown(ask: Ask, known: tuple[str, ...]) -> Refused:
    kind = kind_of(ask.target)
    if kind.lower().startswith("microsoft.resources"):  # Resource Manager itself handles these
        message = (
            f"The api-version '{ask.version}' is invalid. The supported versions are '{','.join(reversed(known))}'."
        )
        return invalid(message, "InvalidApiVersionParameter")
    where, places = str(ask.body.get("location") or "").lower(), ", ".join(catalog.REGIONS)
    return invalid(
        f"No registered resource provider found for location '{where}' and API version '{ask.version}' for type "
        f"'{kind.partition('/')[2]}'. The supported api-versions are '{', '.join(known)}'. The supported locations are "
        f"'{places}'.",
        "NoRegisteredProviderFound",
    )


_MOST_TAGS, _TAG_NAME, _TAG_VALUE = 50, 512, 256
_GUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", re.IGNORECASE)
_GROUP = re.compile(r"[-\w.()]{0,89}[-\w()]$")
_NETWORK = re.compile(r"\w([\w.-]{0,78}\w)?$")
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{2,127}$")
_DEPLOYMENT = re.compile(r"[-\w.()]{1,64}$")


_PLACED = {
    "microsoft.compute/disks",
    "microsoft.compute/virtualmachines",
    "microsoft.compute/virtualmachinescalesets",
    "microsoft.machinelearningservices/workspaces",
    "microsoft.managedidentity/userassignedidentities",
    "microsoft.network/networkinterfaces",
    "microsoft.network/networksecuritygroups",
    "microsoft.network/publicipaddresses",
    "microsoft.network/virtualnetworks",
    "microsoft.storage/storageaccounts",
}
_OBJECTS = ("properties", "sku", "identity", "plan")


def check_outline(ask: Ask) -> None:
    """Checked before the caller's identity."""
    for word in _OBJECTS:
        value = ask.body.get(word)
        if value is not None and not isinstance(value, Mapping):
            raise unreadable(f"Error converting value {json.dumps(value)[:80]} to an object. Path '{word}'.")


def checked(ask: Ask) -> Ask:
    """The same request without null fields, as Azure reads it; refused where no handler should see it."""
    if ask.method not in ("PUT", "PATCH"):
        return ask
    if ask.method == "PUT":
        check_name(ask)
        _check_location(ask)
    check_tags(ask.body.get("tags"))
    if ask.target.kind.lower() == "microsoft.resources/deployments":
        return ask  # in a template, null has a meaning
    body = without_nulls(ask.body)
    forms.check(ask.target.kind, body)
    return replace(ask, body=body)


def _check_location(ask: Ask) -> None:
    if ask.target.kind.lower() in _PLACED and not ask.body.get("location"):
        raise invalid("The location property is required for this definition.", "LocationRequired")


def without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def check_tags(tags: Any) -> None:
    if not tags:
        return
    if not isinstance(tags, Mapping) or not all(isinstance(value, str | None) for value in tags.values()):
        raise invalid("The tags are invalid: a tag's value is a text.", "InvalidRequestContent")
    if len(tags) > _MOST_TAGS:
        raise invalid(f"The number of tags is {len(tags)}, which exceeds the maximum of {_MOST_TAGS}.", "TooManyTags")
    for name, value in tags.items():
        if not name or len(name) > _TAG_NAME:
            raise invalid(
                f"Tag name '{name[:40]}' is invalid. Tag names have 1 to {_TAG_NAME} characters.",
                "InvalidTagNameLength",
            )
        if found := set(name) & set("<>%&\\?/"):
            raise invalid(
                f"The tag name '{name}' has reserved characters '<,>,%,&,\\,?,/' or control characters: "
                f"{''.join(sorted(found))}",
                "InvalidTagNameCharacters",
            )
        if len(value or "") > _TAG_VALUE:
            raise invalid(
                f"Tag value of '{name}' is too long. Following types only support a tag value length of {_TAG_VALUE} "
                "characters or less.",
                "InvalidTagValueLength",
            )


def check_name(ask: Ask) -> None:
    kind, name = ask.target.kind.lower(), ask.target.name
    if kind == ids.GROUPS.lower() and not _GROUP.match(name):
        raise invalid(
            f"The provided resource group name '{name}' is invalid. The name has at most 90 letters, digits, '-', '.', "
            "'(', ')' and '_', and does not end with '.'.",
            "InvalidResourceGroup",
        )
    if kind.startswith("microsoft.network/") and not _NETWORK.match(name):
        raise invalid(
            f"Resource name {name} is invalid. The name can be up to 80 characters long. It must begin with a word "
            "character, and it must end with a word character or with '_'. The name may contain word characters or "
            "'.', "
            "'-', '_'.",
            "InvalidResourceName",
        )
    if kind == "microsoft.compute/disks" and not _NETWORK.match(name):
        raise invalid(
            f"The value '{name}' of parameter diskName is invalid: it has at most 80 word characters, '.', '-'."
        )
    if kind == "microsoft.managedidentity/userassignedidentities" and not _IDENTITY.match(name):
        raise invalid(
            f"The resource name '{name}' is invalid: 3 to 128 letters, digits, '-' and '_'.", "InvalidResourceName"
        )
    if kind == "microsoft.resources/deployments" and not _DEPLOYMENT.match(name):
        raise invalid(f"The deployment name '{name}' is invalid: at most 64 characters.", "InvalidDeploymentName")
    _check_guid(kind, name)


def _check_guid(kind: str, name: str) -> None:
    for known, title in ((rights.ASSIGNMENTS, "Assignment"), (rights.DEFINITIONS, "Definition")):
        if kind == known.lower() and not _GUID.match(name):
            message = f"The role {title.lower()} ID '{name}' is not valid. The role {title.lower()} ID must be a GUID."
            raise Refused(400, f"InvalidRole{title}Id", message)

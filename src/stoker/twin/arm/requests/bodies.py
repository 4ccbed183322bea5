"""Rules for all bodies: names, tags and types of fields, whatever the resource."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.twin import ids
from stoker.twin.access import rights
from stoker.twin.arm import forms
from stoker.twin.arm.requests.ask import Ask
from stoker.twin.refusal import Refused, invalid, unreadable

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

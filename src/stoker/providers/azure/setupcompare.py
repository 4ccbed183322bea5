"""What is there of a resource beside what is wanted of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.providers.azure.setupresources import Wanted
from stoker.providers.azure.setuproles import Json


def merged(one: Wanted, found: Json) -> Wanted:
    """What to ask for where something is there: others' tags stay, and so does what cannot be changed."""
    body = dict(one.body)
    if "location" in body:
        body["location"] = found.get("location") or body["location"]
    if "tags" in body:
        body["tags"] = {**(found.get("tags") or {}), **body["tags"]}
    if one.first:
        kept = {name: found["properties"][name] for name in one.first if name in found.get("properties", {})}
        body["properties"] = {**body["properties"], **kept}
    return replace(one, id=found.get("id") or one.id, body=body)


def agrees(wanted: Any, found: Any) -> bool:
    """Whether what was found is what is wanted; Azure answers with more than it was told, and with other capitals."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(agrees(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list | tuple):
        if not isinstance(found, list | tuple) or len(wanted) != len(found):
            return False
        if all(isinstance(one, str) for one in wanted):
            return sorted(one.lower() for one in wanted) == sorted(str(one).lower() for one in found)
        return all(agrees(one, other) for one, other in zip(wanted, found, strict=True))
    if isinstance(wanted, str):
        return isinstance(found, str) and wanted.lower() == found.lower()
    return bool(wanted == found)

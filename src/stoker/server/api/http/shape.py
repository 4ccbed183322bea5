"""The output of the API: the form of `model/wire.py`, and the OpenAPI schema of what goes in and out."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import Request
from fastapi.responses import Response

from stoker.model import wire
from stoker.model.job import job
from stoker.server.api.http.kinds import kind_for
from stoker.server.service import Service

# For calls that reach a store or a provider: their possible failures.
OUTSIDE = (403, 409, 502, 503, 504)
JSON = "application/json"
BYTES = "application/octet-stream"
MOST_COUNTED = 10**9  # attempts, ranks, points
MOST_BYTES = 2**62  # an offset that a file may have

COMPONENTS: dict[str, dict[str, Any]] = {}  # the shapes that routes refer to, by name


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def answer(value: Any, status: int = 200) -> Response:
    """A response from facts: faster than checking every field again on the way out."""
    return Response(wire.dump(value), status, media_type=JSON)


def takes(of: type[Any], media: str = JSON) -> dict[str, Any]:
    """The body of a route in the OpenAPI document; bytes have no schema."""
    shape = {} if of is bytes else kind_for(of).schema()
    return {"requestBody": {"required": True, "content": {media: {"schema": shape}}}}


def gives(of: Any, *failures: int, media: str = JSON) -> dict[int | str, dict[str, Any]]:
    """The response of a route, as `schema` accepts it, and its failures besides those of every call."""
    content = {media: {"schema": schema(of)}} if media == JSON else {media: {}}
    return {200: {"description": "Success", "content": content}} | fails(*failures)


def fails(*statuses: int) -> dict[int | str, dict[str, Any]]:
    content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {one: {"description": HTTPStatus(one).phrase, "content": content} for one in sorted(set(statuses))}


def schema(of: Any) -> dict[str, Any]:
    """The JSON Schema of a type in its wire form; of a mapping of names to types, or of a list of one."""
    if isinstance(of, list):
        return {"type": "array", "items": schema(of[0])}
    if isinstance(of, Mapping):
        properties = {name: schema(one) for name, one in of.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}
    origin = get_origin(of)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema(arm) for arm in get_args(of)]}
    if origin is Literal:
        return {"enum": list(get_args(of))}
    if origin in (tuple, list):
        return {"type": "array", "items": schema(get_args(of)[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(get_args(of)[1])}
    if isinstance(of, type) and is_dataclass(of):
        return _component(of)
    if isinstance(of, type) and issubclass(of, StrEnum):
        return {"type": "string", "enum": [str(word) for word in of]}
    return _SIMPLE.get(of, {})


_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # null for what is not finite
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    Decimal: {"type": "string"},
    type(None): {"type": "null"},
}


def _component(of: type[Any]) -> dict[str, Any]:
    name = of.__name__
    if name not in COMPONENTS:
        COMPONENTS[name] = {}  # until it is known: a schema may contain itself
        COMPONENTS[name] = _job() if of is job.Job else _record(of)
    return {"$ref": f"#/components/schemas/{name}"}


def _job() -> dict[str, Any]:
    return {key: value for key, value in job.schema().items() if key != "$schema"} | {"title": "Job"}


def _record(of: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(of)
    needed = [one.name for one in fields(of) if one.default is MISSING and one.default_factory is MISSING]
    properties = {one.name: schema(hints[one.name]) for one in fields(of)}
    return {"type": "object", "title": of.__name__, "properties": properties, "required": needed}

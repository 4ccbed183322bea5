"""How facts enter and leave the API: the form of `model/wire.py`, described for OpenAPI."""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fastapi import Request
from fastapi.responses import Response

from stoker.errors import BadInput
from stoker.model import job, wire
from stoker.server.service import Service

T = TypeVar("T")


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def body(request: Request, of: type[T]) -> T:
    """The request's body as this dataclass. JobInvalid passes through; other misfits are BadInput."""
    try:
        return wire.load(of, await request.body())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"the body is not a {of.__name__}: {error}") from error


def answer(value: Any, status: int = 200) -> Response:
    """A response from facts: quicker than having every field checked again on the way out."""
    data = json.dumps(wire.to_plain(value), separators=(",", ":"), ensure_ascii=False)
    return Response(data, status, media_type="application/json")


def takes(of: type[Any]) -> dict[str, Any]:
    """What a route says about its body in the OpenAPI document."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema(of)}}}}


def gives(of: type[Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"schema": schema(of)}}}}


def schema(of: Any) -> dict[str, Any]:
    """The JSON Schema of a type in its wire form."""
    origin = get_origin(of)
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema(arm) for arm in get_args(of)]}
    if origin is Literal:
        return {"enum": list(get_args(of))}
    if origin is tuple:
        return {"type": "array", "items": schema(get_args(of)[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema(get_args(of)[1])}
    if of is job.Job:
        return {key: value for key, value in job.schema().items() if key != "$schema"}
    if isinstance(of, type) and is_dataclass(of):
        return _record(of)
    if isinstance(of, type) and issubclass(of, StrEnum):
        return {"type": "string", "enum": [str(word) for word in of]}
    return _SIMPLE.get(of, {})


_SIMPLE: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    Decimal: {"type": "string"},
    type(None): {"type": "null"},
}


def _record(of: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(of)
    needed = [one.name for one in fields(of) if one.default is MISSING and one.default_factory is MISSING]
    properties = {one.name: schema(hints[one.name]) for one in fields(of)}
    return {"type": "object", "title": of.__name__, "properties": properties, "required": needed}

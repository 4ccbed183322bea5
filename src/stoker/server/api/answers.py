"""What every request passes and every answer looks like: the token, one form of errors, and the OpenAPI schema."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.errors import BadInput, Denied, JobInvalid, StokerError, TooSlow
from stoker.model import wire
from stoker.model.job import job
from stoker.server.api.requests import kind_for
from stoker.server.service import Service

log = logging.getLogger(__name__)

SHAPE: dict[str, Any] = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "cause", "message", "hint", "problems"],
            "properties": {
                "code": {"type": "string"},
                "cause": {"type": "string"},
                "message": {"type": "string"},
                "hint": {"type": "string"},
                "problems": {"type": "array", "items": {"type": "object"}},
            },
        }
    },
}


def handle_errors(app: FastAPI) -> None:
    app.exception_handler(StokerError)(_known)
    app.exception_handler(RequestValidationError)(_bad_request)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(ClientDisconnect)(_nobody)
    app.exception_handler(Exception)(_bug)


def failed(error: StokerError) -> Response:
    problems = [wire.to_plain(one) for one in error.problems] if isinstance(error, JobInvalid) else []
    return _answer(error.http_status, error.code, error.message, error.hint, problems, error.cause)


def _answer(status: int, code: str, message: str, hint: str = "", problems: object = (), cause: str = "") -> Response:
    told = {"error": {"code": code, "cause": cause, "message": message, "hint": hint, "problems": problems}}
    # As ASCII: a message may repeat a name that has no other form.
    return Response(json.dumps(told, separators=(",", ":")), status, media_type="application/json")


async def _known(_: Request, error: Exception) -> Response:
    assert isinstance(error, StokerError)
    return failed(error)


async def _bad_request(_: Request, error: Exception) -> Response:
    """For a parameter: where it is and what was expected, without what was sent."""
    assert isinstance(error, RequestValidationError)
    told = (f"{'.'.join(str(part) for part in one['loc'][1:])}: {one['msg']}" for one in error.errors())
    return failed(BadInput("; ".join(told)))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = "not-found" if error.status_code == 404 else "bad-input"
    answer = _answer(error.status_code, code, f"{request.method} {request.url.path}: {error.detail}")
    answer.headers.update(error.headers or {})
    return answer


async def _nobody(_: Request, _error: Exception) -> Response:
    """The client has disconnected, so this answer is not sent."""
    return _answer(408, "too-slow", "the connection was closed")


async def _bug(request: Request, error: Exception) -> Response:
    """The exception may contain what was sent: the log has it, with a mark that the response names."""
    mark = secrets.token_hex(4)
    log.error("%s: %s %s failed", mark, request.method, request.url.path, exc_info=error)
    return _answer(500, "bug", "internal server error", f"search for {mark} in the server's log")


OPEN = "/v1/proof"  # the one call without a token: it shows a client that this is its server
_SILENCE_S = 20.0
_GRACE_S = 30.0
_LEAST_BYTES_PER_S = 1024.0  # of a body, after the grace period


class ApiDoor:
    def __init__(self, app: ASGIApp, token: str, silence_s: float = _SILENCE_S) -> None:
        self._app = app
        self._token = token.encode()
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] != OPEN and not self._knows_token(scope):
            hint = "set STOKER_TOKEN, or unset STOKER_SERVER"
            await failed(Denied("the token is missing or wrong", hint=hint))(scope, receive, send)
        else:
            scope["app"].state.asked_at = time.monotonic()
            await self._app(scope, _Hurried(receive, self._silence_s), send)

    def _knows_token(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return secrets.compare_digest(given.removeprefix(b"Bearer "), self._token)


class _Hurried:
    """Passes a body on as it arrives, and aborts one that stalls."""

    def __init__(self, receive: Receive, silence_s: float) -> None:
        self._receive = receive
        self._silence_s = silence_s
        self._whole = False
        self._waited_s = 0.0  # for the client only: the time that the server spends on a chunk does not count
        self._size = 0

    async def __call__(self) -> Message:
        if self._whole:  # only a disconnect of the client can follow, however late
            return await self._receive()
        began = time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), self._silence_s)
        except TimeoutError:
            raise TooSlow(f"the body timed out: nothing arrived for {self._silence_s:g} s") from None
        self._waited_s += time.monotonic() - began
        self._size += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if not self._whole and self._waited_s > _GRACE_S + self._size / _LEAST_BYTES_PER_S:
            raise TooSlow(f"the body is slower than {_LEAST_BYTES_PER_S:g} bytes per second")
        return message


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

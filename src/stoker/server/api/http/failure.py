"""One form for every error: our own text, never a traceback or a secret from the request."""

from __future__ import annotations

import json
import logging
import secrets
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from stoker.errors import BadInput, JobInvalid, StokerError
from stoker.model import wire

log = logging.getLogger(__name__)

SHAPE: dict[str, Any] = {
    "title": "Error",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint", "problems"],
            "properties": {
                "code": {"type": "string"},
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
    return _answer(error.http_status, error.code, error.message, error.hint, problems)


def _answer(status: int, code: str, message: str, hint: str = "", problems: object = ()) -> Response:
    told = {"error": {"code": code, "message": message, "hint": hint, "problems": problems}}
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
    """The client has disconnected: this is sent to nobody."""
    return _answer(408, "too-slow", "the connection was closed")


async def _bug(request: Request, error: Exception) -> Response:
    """The exception may contain what was sent: the log has it, with a mark that the response names."""
    mark = secrets.token_hex(4)
    log.error("%s: %s %s failed", mark, request.method, request.url.path, exc_info=error)
    return _answer(500, "bug", "internal server error", f"search for {mark} in the server's log")

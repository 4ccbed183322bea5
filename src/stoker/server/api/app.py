"""The application: routes, the token, and one shape for every error."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from stoker import __version__
from stoker.errors import Denied, JobInvalid, StokerError
from stoker.model import wire
from stoker.server.api import (
    budgets,
    checkpoints,
    datasets,
    health,
    left,
    logs,
    metrics,
    money,
    outputs,
    runs,
    snapshots,
    stores,
    visits,
)
from stoker.server.service import Service


def build(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.ledger.load()
        task = asyncio.create_task(service.reconciler.run(), name="reconciler")
        yield
        task.cancel()
        service.database.close()

    app = FastAPI(
        title="Stoker",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        dependencies=[Depends(_check_token)],
    )
    app.state.service = service
    app.state.asked_at = time.monotonic()
    app.middleware("http")(_note_request)
    app.exception_handler(StokerError)(_known)
    app.exception_handler(RequestValidationError)(_bad_request)
    app.exception_handler(HTTPException)(_http)
    app.exception_handler(Exception)(_bug)
    nouns = (
        health,
        snapshots,
        runs,
        logs,
        metrics,
        outputs,
        checkpoints,
        datasets,
        stores,
        left,
        visits,
        money,
        budgets,
    )
    for noun in nouns:
        app.include_router(noun.router, prefix="/v1")
    return app


async def _check_token(request: Request) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not secrets.compare_digest(given.encode(), request.app.state.service.token.encode()):
        raise Denied("the token is missing or wrong", hint="set STOKER_TOKEN, or unset STOKER_SERVER")


async def _note_request(request: Request, then: Callable[[Request], Awaitable[Response]]) -> Response:
    request.app.state.asked_at = time.monotonic()
    return await then(request)


def _answer(status: int, code: str, message: str, hint: str = "", problems: object = ()) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "hint": hint, "problems": problems}}, status)


async def _known(_: Request, error: Exception) -> Response:
    assert isinstance(error, StokerError)
    problems = [wire.to_plain(one) for one in error.problems] if isinstance(error, JobInvalid) else []
    return _answer(error.http_status, error.code, error.message, error.hint, problems)


async def _bad_request(_: Request, error: Exception) -> Response:
    return _answer(422, "bad-input", f"the request is not of the API's form: {error}")


async def _http(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    return _answer(
        status, "not-found" if status == 404 else "bad-input", f"{request.method} {request.url.path}: {error}"
    )


async def _bug(_: Request, error: Exception) -> Response:
    return _answer(500, "bug", f"{type(error).__name__}: {error}", "the server's log has the details")

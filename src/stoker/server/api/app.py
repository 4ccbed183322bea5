"""The application: its routes, the checks before them, and the document that describes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request

from stoker import __version__
from stoker.errors import BadInput
from stoker.model.job.fields import shown
from stoker.server.api.answers import COMPONENTS, OPEN, SHAPE, ApiDoor, fails, handle_errors
from stoker.server.api.contents import dataset_router as datasets
from stoker.server.api.contents import environment_router as environments
from stoker.server.api.contents import snapshot_router as snapshots
from stoker.server.api.housekeeping import router as housekeeping
from stoker.server.api.housekeeping import server_router as health
from stoker.server.api.money import router as money
from stoker.server.api.nodes import cluster_router as clusters
from stoker.server.api.nodes import router as nodes
from stoker.server.api.results import log_router as logs
from stoker.server.api.results import metric_router as metrics
from stoker.server.api.results import router as results
from stoker.server.api.runs import router as runs
from stoker.server.api.stores import router as stores
from stoker.server.api.visits import router as visits
from stoker.server.service import Service
from stoker.server.sweeps.asking import Asking
from stoker.server.sweeps.results import router as swept
from stoker.server.sweeps.routes import router as sweeps
from stoker.server.warming import Warming

_ROUTERS = (
    health,
    snapshots,
    runs,
    sweeps,
    swept,
    logs,
    metrics,
    results,
    visits,
    datasets,
    environments,
    stores,
    nodes,
    clusters,
    money,
    housekeeping,
)


def build(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.ledger.load()
        tasks = [
            asyncio.create_task(service.reconciler.run(), name="reconciler"),
            asyncio.create_task(service.housekeeping.run(), name="housekeeping"),
            asyncio.create_task(Asking(service).run(), name="asking"),
            asyncio.create_task(Warming(service).run(), name="warming"),
        ]
        yield
        for task in tasks:
            task.cancel()
        service.database.close()

    app = _Api(
        title="Stoker",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
        dependencies=[Depends(_check_texts)],
        responses=fails(401, 408, 413, 422),
    )
    app.state.service = service
    app.state.asked_at = time.monotonic()
    app.add_middleware(ApiDoor, token=service.token)
    handle_errors(app)
    for router in _ROUTERS:
        app.include_router(router, prefix="/v1")
    return app


class _Api(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """With the schemas that routes refer to, and the token that every call except one requires."""
        if self.openapi_schema is None:
            document = super().openapi()
            parts = document.setdefault("components", {})
            parts["schemas"] = parts.get("schemas", {}) | {"Error": SHAPE} | COMPONENTS
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"token": []}]
            document["paths"][OPEN]["get"]["security"] = []
        assert self.openapi_schema is not None
        return self.openapi_schema


async def _check_texts(request: Request) -> None:
    """Paths and queries contain no control characters. An unknown parameter is not ignored."""
    for name, value in (*request.path_params.items(), *request.query_params.multi_items()):
        if any(one < " " and one not in "\t\r\n" for one in f"{name}{value}"):
            raise BadInput(f"{shown(name)}: found {shown(value)}, expected text without control characters")
    known = [one.alias for one in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "none"
            raise BadInput(f"{shown(name)}: found an unknown parameter, expected {expected}")

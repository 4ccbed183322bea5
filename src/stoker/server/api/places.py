"""Where runs can go: what whoever submits one has to know of a provider before it does."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from stoker.errors import NotFound
from stoker.model.node.node import Features
from stoker.server.api.shape import answer, gives, service_of

router = APIRouter(tags=["nodes"])


@router.get("/providers/{name}", responses=gives(Features, 404))
async def features(request: Request, name: str) -> Response:
    """How a provider differs from others. Asks nobody outside, and spends nothing."""
    provider = service_of(request).providers.get(name)
    if provider is None:
        raise NotFound(f"there is no provider `{name}`", hint="see which there are: stoker plan")
    return answer(provider.features)

"""Datasets: register, list, show and remove versions. Content goes directly to the store, not through the server."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from stoker.model.dataset import DatasetVersion
from stoker.server.api.http.reading import Bounds, check_json, read_bytes
from stoker.server.api.http.shape import OUTSIDE, answer, gives, service_of, takes
from stoker.server.data.datasets import DatasetStart, refused_while_used
from stoker.server.data.removal import Removed
from stoker.server.rounds.outside import call, call_briefly

router = APIRouter(tags=["datasets"])
_MANIFEST = Bounds(1 << 30, 40_000_000)  # about ten million files
_PATIENCE_S = 20.0  # for content to be removed; after that it continues in the background


_VERSIONS = {"versions": tuple[DatasetVersion, ...]}


@router.get("/datasets", responses=gives(_VERSIONS))
async def page(request: Request) -> Response:
    """Every version of every dataset: by name, newest first."""
    return answer({"versions": await call(service_of(request).datasets.versions)})


@router.get("/datasets/{ref}", responses=gives(DatasetVersion, 404))
async def show(request: Request, ref: str) -> Response:
    """The version that `name`, `name@3` or `name@<hash>` refers to."""
    return answer(await call(service_of(request).datasets.resolve, ref))


@router.get("/datasets/{name}/versions", responses=gives(_VERSIONS, 404))
async def versions(request: Request, name: str) -> Response:
    """Newest first."""
    return answer({"versions": await call(service_of(request).datasets.versions, name)})


@router.get("/datasets/{ref}/manifest", responses=gives(object, 404, *OUTSIDE))
async def manifest(request: Request, ref: str) -> Response:
    """The files of a version, as text whose sha256 is the version's id."""
    datasets = service_of(request).datasets
    data = await call(datasets.manifest, await call(datasets.resolve, ref))
    return Response(data, media_type="application/json")


@router.get("/datasets/{ref}/runs", responses=gives({"runs": tuple[str, ...]}, 404))
async def runs(request: Request, ref: str) -> Response:
    """The names of runs that read this version, newest first."""
    service = service_of(request)
    return answer({"runs": await call(service.database.runs_using, await call(service.datasets.resolve, ref))})


@router.get("/datasets/{name}/start", responses=gives(DatasetStart, 404, *OUTSIDE))
async def start(request: Request, name: str, store: str = "") -> Response:
    """What to know before an upload: the store, the newest version, and a mark to register with."""
    return answer(await call(service_of(request).datasets.start, name, store))


@router.post(
    "/datasets/{name}/versions",
    openapi_extra=takes(bytes),
    responses=gives(DatasetVersion, 404, *OUTSIDE),
)
async def register(
    request: Request,
    name: str,
    store: str,
    mark: str,
    tag: Annotated[list[str], Query(default_factory=list)],
    description: str = Query("", max_length=10_000),
    licence: str = Query("", max_length=200),
    person: str = "",
) -> Response:
    """Accepts a manifest, once all its content is in the store. The same files again give the same version."""
    service = service_of(request)
    data = await read_bytes(request, _MANIFEST.size_bytes)
    await call(check_json, data, _MANIFEST)
    tags = tuple(dict.fromkeys(tag))
    version = DatasetVersion(name, 0, "", store, 0, 0, service.clock.now(), description, licence, tags, person)
    return answer(await call(service.datasets.register, version, data, mark))


_REMOVED = {"versions": tuple[DatasetVersion, ...], "finished": bool, "files": int, "size_bytes": int}


@router.delete("/datasets/{ref}", responses=gives(_REMOVED, 404, *OUTSIDE))
async def remove(request: Request, ref: str, force: bool = False) -> Response:
    """A version, or all of them if only a name is given, and the content that no other version uses. With `finished`
    false, content is still being removed."""
    service = service_of(request)
    one = await call(service.datasets.resolve, ref)
    versions = [one] if "@" in ref else await call(service.datasets.versions, ref)
    for version in versions:
        if not force and (runs := await call(service.database.runs_using, version)):
            raise refused_while_used(version, runs)
    removed = await call_briefly(_PATIENCE_S, service.datasets.remove, versions)
    amount = removed or Removed()
    finished = removed is not None
    return answer({"versions": versions, "finished": finished, "files": amount.files, "size_bytes": amount.size_bytes})

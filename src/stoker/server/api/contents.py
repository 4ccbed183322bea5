"""Code, datasets and environments: manifests, versions, and the files that the store lacks."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from stoker.errors import BadInput, Corrupt, Missing, NotFound
from stoker.model.cause import Cause
from stoker.model.dataset import DatasetVersion
from stoker.model.job.fields import shown
from stoker.model.snapshot import EntryKind, Snapshot, checked_path
from stoker.server.api.answers import BYTES, OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import Bounds, body, check_json, read_bytes
from stoker.server.codeshelf import CodeShelf
from stoker.server.contents import DatasetStart, KnownEnvironment, Removed, refused_while_used
from stoker.server.rounds.outside import call, call_briefly

snapshot_router = APIRouter(tags=["snapshots"])
_IN_MEMORY_BYTES = 8 << 20
_SNAPSHOT_MANIFEST = Bounds(64 << 20, 3_000_000)  # some 400,000 files
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


_HASH = re.compile("[0-9a-f]{64}")
_LACKED = {"missing": tuple[str, ...]}
_MISSING = {"id": str, "missing": tuple[str, ...]}


@snapshot_router.post("/snapshots", openapi_extra=takes(Snapshot), responses=gives(_MISSING, 404, *OUTSIDE))
async def register_snapshot(request: Request, store: str = "") -> Response:
    """Returns what is missing; once nothing is, the snapshot is stored. `store` names another store than the
    workspace's."""
    snapshot = await body(request, Snapshot, _SNAPSHOT_MANIFEST)
    await call(_check, snapshot)
    shelf = await call(_shelf, request, store)
    missing = await call(shelf.register, snapshot)
    return answer({"id": snapshot.id, "missing": missing})


@dataclass(frozen=True, slots=True)
class BlobHashes:
    """Of the files of a snapshot."""

    hashes: tuple[str, ...]


@snapshot_router.post("/blobs/missing", openapi_extra=takes(BlobHashes), responses=gives(_LACKED, *OUTSIDE))
async def missing(request: Request) -> Response:
    """Which of these files the store lacks. Nothing is kept or expected: a plan asks this, and needs no manifest for
    it, which takes ten times as long to read."""
    asked = await body(request, BlobHashes, _SNAPSHOT_MANIFEST)
    if wrong := [one for one in asked.hashes if not _HASH.fullmatch(one)]:
        raise BadInput(f"hashes: found {shown(wrong[0])}, expected 64 hexadecimal digits")
    shelf = await call(_shelf, request, "")
    return answer({"missing": await call(shelf.lacks, frozenset(asked.hashes))})


@snapshot_router.get("/snapshots/{id}", responses=gives(Snapshot, 404, *OUTSIDE))
async def show_snapshot(request: Request, id: Sha256) -> Response:
    try:
        return answer(await call(service_of(request).shelves.snapshot, id))
    except Missing:
        raise NotFound(f"snapshot `{id}` not found", cause=Cause.NO_SUCH_SNAPSHOT) from None


@snapshot_router.get("/blobs/{sha256}", responses=gives(bytes, 404, *OUTSIDE, media=BYTES), response_class=Response)
async def blob(request: Request, sha256: Sha256) -> Response:
    """The content of one file of a snapshot."""
    try:
        data = await call(service_of(request).shelves.blob, sha256)
    except Missing:
        raise NotFound(f"file `{sha256}` not found") from None
    return Response(data, media_type="application/octet-stream")


@snapshot_router.post(
    "/blobs",
    openapi_extra=takes(bytes, media=BYTES),
    responses=gives({"stored": int}, 404, *OUTSIDE),
)
async def upload(request: Request, store: str = "") -> Response:
    """A tar stream whose members are named by their sha256. May be repeated."""
    shelf = await call(_shelf, request, store)
    with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as spool:
        async for chunk in request.stream():
            await call(spool.write, chunk)
        spool.seek(0)
        try:
            stored = await call(shelf.take, spool)  # type: ignore[arg-type]  # it reads
        except Corrupt as error:
            error.http_status = BadInput.http_status  # it was sent like that: the store is not the cause
            raise
    return answer({"stored": stored})


def _check(snapshot: Snapshot) -> None:
    for at, entry in enumerate(snapshot.entries):
        checked_path(entry.path)
        if entry.kind is EntryKind.FILE and not _HASH.fullmatch(entry.sha256):
            raise BadInput(f"entries[{at}].sha256: found {shown(entry.sha256)}, expected 64 hexadecimal digits")


def _shelf(request: Request, store: str) -> CodeShelf:
    shelves = service_of(request).shelves
    return shelves.of(store) if store else shelves.workspace


dataset_router = APIRouter(tags=["datasets"])
_DATASET_MANIFEST = Bounds(1 << 30, 40_000_000)  # about ten million files
_PATIENCE_S = 20.0  # for content to be removed; after that it continues in the background


_VERSIONS = {"versions": tuple[DatasetVersion, ...]}


@dataset_router.get("/datasets", responses=gives(_VERSIONS))
async def page(request: Request) -> Response:
    """Every version of every dataset: by name, newest first."""
    return answer({"versions": await call(service_of(request).datasets.versions)})


@dataset_router.get("/datasets/{ref}", responses=gives(DatasetVersion, 404))
async def show(request: Request, ref: str) -> Response:
    """The version that `name`, `name@3` or `name@<hash>` refers to."""
    return answer(await call(service_of(request).datasets.resolve, ref))


@dataset_router.get("/datasets/{name}/versions", responses=gives(_VERSIONS, 404))
async def versions(request: Request, name: str) -> Response:
    """Newest first."""
    return answer({"versions": await call(service_of(request).datasets.versions, name)})


@dataset_router.get("/datasets/{ref}/manifest", responses=gives(object, 404, *OUTSIDE))
async def manifest(request: Request, ref: str) -> Response:
    """The files of a version, as text whose sha256 is the version's id."""
    datasets = service_of(request).datasets
    data = await call(datasets.manifest, await call(datasets.resolve, ref))
    return Response(data, media_type="application/json")


@dataset_router.get("/datasets/{ref}/runs", responses=gives({"runs": tuple[str, ...]}, 404))
async def runs(request: Request, ref: str) -> Response:
    """The names of runs that read this version, newest first."""
    service = service_of(request)
    return answer({"runs": await call(service.database.runs_using, await call(service.datasets.resolve, ref))})


@dataset_router.get("/datasets/{name}/start", responses=gives(DatasetStart, 404, *OUTSIDE))
async def start(request: Request, name: str, store: str = "") -> Response:
    """What to know before an upload: the store, the newest version, and a mark to register with."""
    return answer(await call(service_of(request).datasets.start, name, store))


@dataset_router.post(
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
    data = await read_bytes(request, _DATASET_MANIFEST.size_bytes)
    await call(check_json, data, _DATASET_MANIFEST)
    tags = tuple(dict.fromkeys(tag))
    version = DatasetVersion(name, 0, "", store, 0, 0, service.clock.now(), description, licence, tags, person)
    return answer(await call(service.datasets.register, version, data, mark))


_REMOVED = {"versions": tuple[DatasetVersion, ...], "finished": bool, "files": int, "size_bytes": int}


@dataset_router.delete("/datasets/{ref}", responses=gives(_REMOVED, 404, *OUTSIDE))
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


environment_router = APIRouter(tags=["environments"])
_ENVIRONMENTS = {"environments": tuple[KnownEnvironment, ...]}


@environment_router.get("/environments", responses=gives(_ENVIRONMENTS))
async def environments(request: Request, person: str = "") -> Response:
    """Those on the server's computer, and those that nodes of this person's runs keep in stores; newest first."""
    return answer({"environments": await call(service_of(request).environments.all, person)})


@environment_router.get("/environments/{ref}", responses=gives(_ENVIRONMENTS, 404))
async def environment(request: Request, ref: str, person: str = "") -> Response:
    """The one that a name, `name@id` or an id refers to, for each place where it is."""
    return answer({"environments": await call(service_of(request).environments.resolve, ref, person)})


@environment_router.delete("/environments/{ref}", responses=gives(_ENVIRONMENTS, 404, 409, *OUTSIDE))
async def remove_environment(request: Request, ref: str, person: str = "") -> Response:
    """From every place. A run that needs it builds it again."""
    return answer({"environments": await call(service_of(request).environments.remove, ref, person)})

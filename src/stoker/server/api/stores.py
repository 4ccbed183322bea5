"""Stores: add, list, test, choose and remove them; and access to a part of one for a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from fastapi import APIRouter, Request, Response

from stoker.errors import Conflict
from stoker.model.cause import Cause
from stoker.model.workspace.store import KnownStore, StoreFinding, works
from stoker.server.api.answers import OUTSIDE, answer, gives, service_of, takes
from stoker.server.api.requests import body
from stoker.server.rounds.outside import call
from stoker.server.service import Service
from stoker.stores.access import Credential
from stoker.stores.kinds import check_credential, locate

router = APIRouter(tags=["stores"])


@dataclass(frozen=True, slots=True)
class NewStore:
    """`credential` is its kind, and `values` the fields of that kind: these go only to the keychain."""

    name: str
    url: str
    credential: str = "none"
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    check: bool = True  # add it only if it works
    use: bool = False  # use it for new runs
    moved_from: str = ""  # the previous URL of the store with this name
    shared: bool | None = None  # remote nodes may get a credential that cannot be restricted; null: unchanged


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """Prefixes of keys, each ending with `/`."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


_ADDED = {"store": KnownStore | None, "findings": tuple[StoreFinding, ...]}
_CHECKED = {"ok": bool, "findings": tuple[StoreFinding, ...]}
_ACCESS = {"access": str, "expires_at": float}


@router.get("/stores", responses=gives({"stores": tuple[KnownStore, ...]}))
async def listing(request: Request) -> Response:
    """The folder first, then the others by name. `workspace` is true for the store of new runs."""
    return answer({"stores": service_of(request).stores.all})


@router.post("/stores", openapi_extra=takes(NewStore), responses=gives(_ADDED, 404, *OUTSIDE))
async def add(request: Request) -> Response:
    """`store` is null if the test failed, and then nothing was saved; `findings` say why."""
    service = service_of(request)
    given = await body(request, NewStore)
    credential = Credential(given.credential, dict(given.values))
    url, _ = service.stores.check_new(given.name, given.url, given.moved_from)
    check_credential(locate(url), credential)
    from stoker.server.stores.check import try_new  # HTTP clients would slow down every start of a server

    findings = await call(try_new, url, credential, service.settings.access_s, given.shared) if given.check else []
    if not works(findings):
        return answer({"store": None, "findings": findings})
    now = service.clock.now()
    adding = partial(service.stores.add, shared=given.shared)
    store = await call(adding, given.name, url, credential, now, given.moved_from)
    if given.use:
        store = await call(service.stores.use, store.name)
    service.accesses.renew_soon()
    service.reconciler.wake()
    return answer({"store": store, "findings": findings})


@router.post("/stores/{name}/check", responses=gives(_CHECKED, 404, *OUTSIDE))
async def check(request: Request, name: str) -> Response:
    """Tests everything that Stoker needs from a store. Leaves nothing behind."""
    service = service_of(request)
    from stoker.server.stores.check import try_known  # as above

    findings = await call(try_known, service.stores, name, service.settings.access_s)
    return answer({"ok": works(findings), "findings": findings})


@router.post("/stores/{name}/use", responses=gives(KnownStore, 404))
async def use(request: Request, name: str) -> Response:
    """New runs are stored there from now on. Existing runs stay where they are."""
    return answer(await call(service_of(request).stores.use, name))


@router.delete("/stores/{name}", responses=gives({"removed": str}, 404, 409))
async def remove(request: Request, name: str) -> Response:
    """Removes the store and its credential. Its content is not touched."""
    service = service_of(request)
    service.stores.named(name)
    await _check_unused(service, name)
    await call(service.stores.remove, name)
    return answer({"removed": name})


@router.post("/stores/{name}/access", openapi_extra=takes(AccessRequest), responses=gives(_ACCESS, 404, *OUTSIDE))
async def access(request: Request, name: str) -> Response:
    """Temporary access to a part of the store: `access` is what `stoker.stores.access.Access` reads."""
    service = service_of(request)
    asked = await body(request, AccessRequest)
    given = await call(service.accesses.for_client, name, list(asked.reads), list(asked.writes))
    return answer({"access": given.to_text(), "expires_at": given.expires_at})


async def _check_unused(service: Service, name: str) -> None:
    """Refuses to remove a store that is in use, because its content would become unreachable."""
    runs = await call(service.database.runs_in, name)
    if runs:
        what = f"the run `{runs[0]}` is" if len(runs) == 1 else f"{len(runs)} runs, such as `{runs[0]}`, are"
        raise Conflict(
            f"{what} stored in `{name}`",
            hint=f"delete runs that you no longer need: `stoker rm {runs[0]}`",
            cause=Cause.STORE_IN_USE,
        )
    if removed := [one.name for one in await call(service.database.removals) if one.store == name]:
        why = "its files are still being deleted"
        raise Conflict(
            f"the run `{removed[0]}` was stored in `{name}`: {why}", hint="retry in a minute", cause=Cause.STORE_IN_USE
        )
    datasets = [version.name for version in await call(service.datasets.in_store, name)]
    if datasets:
        raise Conflict(
            f"the dataset `{datasets[0]}` is stored in `{name}`",
            hint=f"delete it first: `stoker data rm {datasets[0]}`",
            cause=Cause.STORE_IN_USE,
        )

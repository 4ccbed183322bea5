"""Pins the inputs of a run before it is accepted: which files each is, and in which store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from posixpath import commonpath
from urllib.parse import urlsplit

from stoker.errors import BadInput, Corrupt, JobInvalid, NotFound, Problem, StokerError, StoreFailed
from stoker.model.cause import Cause
from stoker.model.dataset import DataFile, DatasetVersion, Manifest
from stoker.model.job.job import DataInput, Job
from stoker.model.job.values import is_kept
from stoker.model.orders import DataOrder
from stoker.model.workspace import layout
from stoker.providers import Provider, keeping
from stoker.server.contents import DatasetRecords
from stoker.server.stores.stores import StoreDirectory
from stoker.stores.kinds import locate, without_secrets

_WEB = ("http", "https")
_NO_STORE = "a URL with http:// or https://, or one inside a store; add that with `stoker store add`"


@dataclass(slots=True)
class Pinned:
    """`listings` are the file lists that were created for this run, by their keys in its own store."""

    inputs: dict[str, DataOrder] = field(default_factory=dict)
    listings: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InputRequest:
    """The run in question. `pins` are the versions of an earlier run; `reaches`: its nodes can read stores that are
    folders of this computer."""

    job: Job
    run_id: str
    store: str
    pins: Mapping[str, str]
    reaches: bool
    kept: Callable[[str], str]  # the URL of data that a provider keeps, in a store that is known from then on


def pin(asked: InputRequest, datasets: DatasetRecords, stores: StoreDirectory) -> Pinned:
    """Reads manifests, and lists URLs. Raises JobInvalid with everything that is missing."""
    found = Pinned()
    problems: list[Problem] = []
    for name, given in asked.job.data.items():
        where = f"data.{name}.dataset" if given.dataset else f"data.{name}"
        try:
            order = _pin(name, given, asked, datasets, stores, found)
        except (NotFound, BadInput, StoreFailed) as error:
            problems.append(_input_problem(where, given, error, datasets))
            continue
        if order:
            found.inputs[name] = order
            problems += _reach_problems(where, order, asked, stores)
            problems += _shard_problems(name, order, asked.job.most_nodes)
    if problems:
        raise JobInvalid(problems)
    return found


def _pin(
    name: str, given: DataInput, asked: InputRequest, datasets: DatasetRecords, stores: StoreDirectory, found: Pinned
) -> DataOrder | None:
    """None for a path."""
    if given.dataset and is_kept(given.dataset):
        return _pin(name, replace(given, dataset=None, path=asked.kept(given.dataset)), asked, datasets, stores, found)
    if given.dataset:
        version = datasets.resolve(asked.pins.get(name) or given.dataset)
        manifest = Manifest.from_bytes(datasets.manifest(version))
        return _of_version(given, version, manifest, asked.store)
    url = given.path or ""
    if "://" not in url or url.startswith("file://"):
        return None
    place = in_store(url, stores)
    if place:
        manifest = _listed(url, *place, stores)
        if asked.pins.get(name, manifest.id) != manifest.id:
            raise Corrupt("the pinned content: the store has other files there by now")
        key = layout.listing(asked.run_id, name)
        found.listings[key] = manifest.to_bytes()
        return _of_files(given, without_secrets(url), place[0], manifest, key, asked.store)
    if urlsplit(url).scheme not in _WEB:
        raise BadInput(_NO_STORE)
    return DataOrder(label=without_secrets(url), mode=given.mode, url=url, sha256=given.sha256 or "")


def _of_version(given: DataInput, version: DatasetVersion, manifest: Manifest, store: str) -> DataOrder:
    root = "" if version.store == store else layout.elsewhere(version.store, "")
    return DataOrder(
        label=version.ref,
        mode=given.mode,
        shard=given.shard,
        dataset=f"{version.name}@{version.id}",
        store=version.store,
        root=root,
        manifest=root + version.manifest,
        id=version.id,
        reads=(layout.dataset(version.name), *_reads(manifest)),
        files=version.files,
        size_bytes=version.size_bytes,
    )


def _of_files(given: DataInput, label: str, name: str, manifest: Manifest, key: str, store: str) -> DataOrder:
    return DataOrder(
        label=label,
        mode=given.mode,
        store=name,
        root="" if name == store else layout.elsewhere(name, ""),
        manifest=key,
        id=manifest.id,
        reads=_reads(manifest),
        files=len(manifest.files),
        size_bytes=manifest.size_bytes,
    )


def in_store(url: str, stores: StoreDirectory) -> tuple[str, str] | None:
    """The name of the store that contains the URL, and the key there."""
    try:
        wanted = locate(url)
    except BadInput:
        return None
    for store in stores.all:
        there = locate(store.url)
        same = (wanted.kind, wanted.endpoint, wanted.container) == (there.kind, there.endpoint, there.container)
        if same and not wanted.local and wanted.prefix.startswith(there.prefix):
            return store.name, wanted.prefix.removeprefix(there.prefix).rstrip("/")
    return None


def kept_url(name: str, providers: Mapping[str, Provider], stores: StoreDirectory, now: datetime) -> str:
    """Where the data is that a provider keeps. The store that it is in is added, or its credential renewed, unless
    another one that is known has it."""
    provider, _, asset = name.partition(":")
    keeper = keeping(providers[provider]) if provider in providers else None
    if keeper is None:
        raise NotFound(f"a provider `{provider}` that keeps data under names of its own")
    found = keeper.data(asset)
    own = f"{provider}-{found.name}"
    if (in_store(found.url, stores) or (own, ""))[0] == own:
        if found.credential is None:
            hint = f"add it yourself: `stoker store add NAME {found.place}`"
            raise StoreFailed(f"`{name}` is in {found.place}, for which `{provider}` has no key", hint=hint)
        stores.add(own, found.place, found.credential, now, shared=True)
    return found.url


def _listed(url: str, name: str, key: str, stores: StoreDirectory) -> Manifest:
    """Everything below the key, or the single file."""
    store = stores.open(name)
    below = f"{key}/" if key else ""
    rows = [
        DataFile(one.key.removeprefix(below), one.size_bytes, key=one.key, etag=one.etag)
        for one in store.list(key)
        if not layout.is_ours(one.key)  # code, records and runs are not data
    ]
    if not rows and key:
        beside = (one for one in store.list(key.rpartition("/")[0]) if one.key == key)
        rows = [DataFile(key.rpartition("/")[2], one.size_bytes, key=key, etag=one.etag) for one in beside]
    if not rows:
        raise NotFound(f"something in the store `{name}`: it has nothing at {without_secrets(url)}")
    return Manifest(rows)


def _reads(manifest: Manifest) -> tuple[str, ...]:
    """No more than the files need: the common folder of files that were registered in place."""
    places = [file.key for file in manifest.files if file.key]
    return (_folder_of(places),) if places else ()


def _folder_of(keys: Iterable[str]) -> str:
    folders = [key.rpartition("/")[0] for key in keys]
    folder = commonpath(folders) if all(folders) else ""
    return f"{folder}/" if folder else ""


def _reach_problems(where: str, order: DataOrder, asked: InputRequest, stores: StoreDirectory) -> list[Problem]:
    if not order.store or asked.reaches or not locate(stores.named(order.store).url).local:
        return []
    expected = f"a store that `{asked.job.on}` can reach: `{order.store}` is a folder of this computer"
    return [Problem(where, f"`{order.label}`", expected)]


def _shard_problems(name: str, order: DataOrder, nodes: int) -> list[Problem]:
    if not order.shard or order.files >= nodes:
        return []
    expected = f"at least one file for each of {nodes} nodes; {order.label} has {order.files}"
    return [Problem(f"data.{name}.shard", "`true`", expected)]


def _input_problem(where: str, given: DataInput, error: StokerError, datasets: DatasetRecords) -> Problem:
    near = datasets.nearest(given.dataset) if given.dataset else ""
    if near and error.cause == Cause.NO_SUCH_DATASET:
        return Problem(where, f"`{given.dataset}`", "the name of a dataset", near)
    return Problem(where, f"`{given.dataset or given.path}`", _spelled_input(error))


def _spelled_input(error: StokerError) -> str:
    return error.message + (f"; {error.hint}" if error.hint else "")

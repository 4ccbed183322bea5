"""What a run reads besides paths of its node, pinned when it is submitted: every attempt and rerun gets the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from posixpath import commonpath
from urllib.parse import urlsplit

from stoker.errors import BadInput, JobInvalid, NotFound, Problem, StoreFailed
from stoker.model import layout
from stoker.model.dataset import DatasetVersion, Manifest
from stoker.model.job import DataInput, Job
from stoker.model.orders import DataOrder
from stoker.server.datasets import Datasets
from stoker.stores.location import without_secrets

WEB = ("http", "https")


def pin(job: Job, pins: Mapping[str, str], datasets: Datasets, store: str) -> dict[str, DataOrder]:
    """The inputs of a run that is kept in `store`. `pins` name versions that an earlier run had. Reads manifests.

    Raises JobInvalid with everything that is not there.
    """
    found: dict[str, DataOrder] = {}
    problems: list[Problem] = []
    for name, given in job.data.items():
        try:
            if given.dataset:
                version = datasets.resolve(pins.get(name) or given.dataset)
                manifest = Manifest.from_bytes(datasets.manifest(version))
                problems += _shard_problems(name, given, job, len(manifest.files))
                found[name] = _of_dataset(given, version, manifest, store)
            elif is_web(given.path or ""):
                found[name] = _of_url(given)
        except (NotFound, BadInput, StoreFailed) as error:
            expected = error.message + (f"; {error.hint}" if error.hint else "")
            problems.append(Problem(f"data.{name}.dataset", f"`{given.dataset}`", expected))
    if problems:
        raise JobInvalid(problems)
    return found


def is_web(path: str) -> bool:
    return "://" in path and urlsplit(path).scheme in WEB


def _of_dataset(given: DataInput, version: DatasetVersion, manifest: Manifest, store: str) -> DataOrder:
    return DataOrder(
        label=version.ref,
        mode=given.mode,
        shard=given.shard,
        dataset=f"{version.name}@{version.id}",
        store=version.store,
        root="" if version.store == store else layout.elsewhere(version.store, ""),
        manifest=version.manifest,
        id=version.id,
        reads=_reads(version, manifest),
        files=version.files,
        size_bytes=version.size_bytes,
    )


def _reads(version: DatasetVersion, manifest: Manifest) -> tuple[str, ...]:
    """No more than the version needs: its manifest, contents by hash, the folder of what was registered in place."""
    found = [version.manifest.rpartition("/")[0] + "/"]
    if any(not file.key for file in manifest.files):
        found.append(layout.content("").split("/")[0] + "/")
    if places := [file.key for file in manifest.files if file.key]:
        found.append(_folder_of(places))
    return tuple(found)


def _folder_of(keys: Iterable[str]) -> str:
    folder = commonpath([key.rpartition("/")[0] or "." for key in keys])
    return f"{folder}/" if folder and folder != "." else ""


def _of_url(given: DataInput) -> DataOrder:
    url = given.path or ""
    return DataOrder(label=without_secrets(url), mode=given.mode, url=url, sha256=given.sha256 or "")


def _shard_problems(name: str, given: DataInput, job: Job, files: int) -> list[Problem]:
    if not given.shard or files >= job.nodes:
        return []
    expected = f"at least one file for each of {job.nodes} nodes; {given.dataset} has {files}"
    return [Problem(f"data.{name}.shard", "`true`", expected)]

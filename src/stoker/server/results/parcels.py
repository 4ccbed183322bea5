"""What can be downloaded of a run: its outputs, its newest checkpoint, and other files of its script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from stoker.errors import Malformed, Missing
from stoker.model import untrusted
from stoker.model.checkpoint import CheckpointSet
from stoker.model.run.run import Run, RunState
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.workspace import layout
from stoker.server.results.goodsets import good_sets
from stoker.stores import Store
from stoker.stores.transfer.reader import open_in_order
from stoker.stores.trees.landing import Landing, choose_folder

_KeyOf = Callable[[str, int, int], str]
_ContentKey = Callable[[str], str]


class Parcel(NamedTuple):
    """Files with the keys of their contents in the store, by hash."""

    entries: tuple[Entry, ...]
    keys: dict[str, str]
    clashes: tuple[str, ...] = ()  # paths at which nodes of a gang have different files: all of them are here

    @property
    def sizes(self) -> list[int]:
        return [entry.size_bytes for entry in self.entries if entry.kind is EntryKind.FILE]

    @property
    def contents(self) -> dict[str, tuple[str, int]]:
        """By hash: the key, and the size."""
        files = [entry for entry in self.entries if entry.kind is EntryKind.FILE]
        return {entry.sha256: (self.keys[entry.sha256], entry.size_bytes) for entry in files}


def outputs(store: Store, run: Run) -> Parcel:
    """Of the newest attempt that has any. Raises Malformed where their manifest is invalid."""
    return _of_attempt(store, run, layout.outputs, "outputs")


def stray(store: Store, run: Run) -> Parcel:
    return _of_attempt(store, run, layout.stray, "files left behind")


def checkpoint(store: Store, run: Run) -> Parcel:
    """The newest valid one of each node, by its paths in the working directory."""
    found = [
        _parcel(newest.entries, partial(layout.checkpoint_file, run.id, node=node))
        for node in range(run.job.nodes)
        if (newest := next(good_sets(store, run.id, datetime.now(UTC), node), None))
    ]
    return merged(found)


def brought(store: Store, run: Run) -> Parcel:
    """What is downloaded automatically: the outputs, and once the run has ended a checkpoint that is not too large.
    Common files are in the outputs."""
    return _with_checkpoint(store, run, outputs(store, run))


def _with_checkpoint(store: Store, run: Run, made: Parcel) -> Parcel:
    if not (run.state.ended and run.brings_checkpoint):
        return made
    kept, begin = checkpoint(store, run), f"{run.job.outputs}/"
    taken = {path for entry in made.entries for path in _with_parents(entry.path)}
    files = {entry.path for entry in made.entries if entry.kind is not EntryKind.FOLDER}
    more = [
        entry
        for entry in kept.entries
        if not entry.path.startswith(begin) and entry.path not in taken and not files & {*_with_parents(entry.path)}
    ]
    return Parcel((*made.entries, *more), {**kept.keys, **made.keys})


def newest_set(store: Store, run: Run) -> CheckpointSet | None:
    """Of the first node: the one that another attempt would resume from, judging by its manifest."""
    return next(good_sets(store, run.id, datetime.now(UTC)), None)


def _of_attempt(store: Store, run: Run, key_of: _KeyOf, what: str) -> Parcel:
    for attempt in reversed(run.attempts):
        found: dict[int, Parcel] = {}
        for member in attempt.members:
            try:
                key = key_of(run.id, attempt.number, member.node)
                snapshot = untrusted.fetch(Snapshot, store, key, untrusted.MANIFEST_BYTES, datetime.now(UTC))
                found[member.node] = _parcel(snapshot.entries, partial(layout.output, run.id))
            except Missing:
                continue
            except Malformed as error:
                raise Malformed(f"the manifest of the {what} of attempt {attempt.number}: {error.message}") from error
        if found:
            return merged([found.get(member.node, Parcel((), {})) for member in attempt.members])
    return Parcel((), {})


def merged(parcels: Sequence[Parcel]) -> Parcel:
    """The files of all nodes of a gang in one tree. Where two have different files of one name, the first node's keeps
    it, and the other's is below `node-1/`, and so on."""
    entries: dict[str, Entry] = {}
    keys: dict[str, str] = {}
    clashing: set[str] = set()
    for node, parcel in enumerate(parcels):
        inside = {entry.path for entry in parcel.entries if clashes(entry, entries)}
        for entry in parcel.entries:
            clash = inside & {*_with_parents(entry.path)}
            path = f"node-{node}/{entry.path}" if clash else entry.path
            entries.setdefault(path, replace(entry, path=path))
        keys |= parcel.keys
        clashing |= inside
    return Parcel(tuple(entries[path] for path in sorted(entries)), keys, tuple(sorted(clashing)))


def clash_words(paths: Sequence[str]) -> str:
    names = ", ".join(f"`{path}`" for path in paths[:8])
    more = f" and {len(paths) - 8} more" if len(paths) > 8 else ""
    return f"nodes wrote different files of the same name: {names}{more}; those of other nodes are in node-1/ and so on"


def clashes(entry: Entry, others: Mapping[str, Entry]) -> bool:
    """Another node has different content there, or a file where this one has a folder."""
    there = others.get(entry.path)
    if there is not None:
        return (there.kind, there.sha256, there.target) != (entry.kind, entry.sha256, entry.target)
    above = (others.get(path) for path in _with_parents(entry.path)[1:])
    return any(one is not None and one.kind is not EntryKind.FOLDER for one in above)


def _parcel(entries: Iterable[Entry], key_of: _ContentKey) -> Parcel:
    kept = tuple(entries)
    return Parcel(kept, {one.sha256: key_of(one.sha256) for one in kept if one.kind is EntryKind.FILE})


def _with_parents(path: str) -> list[str]:
    return [path, *(str(one) for one in PurePosixPath(path).parents if str(one) != ".")]


# Downloads the results of a run to a folder, each file verified.


def land(store: Store, run: Run, parent: Path) -> tuple[Path, Parcel]:
    """Returns the folder, and the outputs. A run that did not succeed goes to another folder, whose name says so."""
    name = run.name if run.state is RunState.SUCCEEDED else f"{run.name}-{run.state}"
    folder = choose_folder(parent, name, run.id)
    made = outputs(store, run)
    parcel = _with_checkpoint(store, run, made)
    landing = Landing(parcel.entries, folder, run.id)
    places, wanted = parcel.contents, list(landing.wanted())
    contents = open_in_order(store, [places[sha256] for sha256 in wanted])
    for sha256, content in zip(wanted, contents, strict=True):
        landing.take(sha256, content)
    landing.finish()
    return folder, made

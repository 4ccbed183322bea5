"""What can be taken from a run: outputs and checkpoints to download, to deliver, or to start another run from."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stoker.engine.decision import Decision
from stoker.engine.lifecycle import cut
from stoker.errors import BadInput, Corrupt, Malformed, Missing, NotFound, ProviderFailed, StokerError, StoreUnavailable
from stoker.model import untrusted
from stoker.model.cause import Cause
from stoker.model.job.job import Job
from stoker.model.job.sections import BESIDE, CheckpointPaths, name_beside
from stoker.model.run.run import Event, Run, RunState, Start
from stoker.model.snapshot import CheckpointSet, Entry, EntryKind, Fence, Position, Snapshot, claim, visible
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.server.rounds.ledger import Ledger
from stoker.server.rounds.outside import Clock
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store
from stoker.stores.transfer.disk import open_in_order
from stoker.stores.transfer.files import Item, download, upload
from stoker.stores.trees.landing import Landing, choose_folder


def good_sets(store: Store, run_id: str, now: datetime, node: int = 0) -> Iterator[CheckpointSet]:
    """Newest first. Unreadable sets, and those that differ from what was committed, do not count."""
    for position in visible(_positions(store, run_id, node), _fences(store, run_id, node, now)):
        with suppress(Missing, Malformed):
            key = layout.checkpoint_set(run_id, *position, node)
            found = untrusted.fetch(CheckpointSet, store, key, untrusted.MANIFEST_BYTES, now)
            if found.whole and found.position == position:
                yield found


def _fences(store: Store, run_id: str, node: int, now: datetime) -> list[Fence]:
    """An unreadable one still fences off earlier attempts, but hides no set."""
    found = []
    for stored in store.list(layout.fences(run_id, node).rstrip("/")):
        with suppress(ValueError):
            attempt, incarnation = layout.fence_mark(stored.key)
            try:
                fence = untrusted.fetch(Fence, store, stored.key, untrusted.SMALL_BYTES, now)
                found.append(replace(fence, attempt=attempt, incarnation=incarnation))
            except (Missing, Malformed):
                found.append(claim(attempt, incarnation))
    return found


def _positions(store: Store, run_id: str, node: int) -> list[Position]:
    found = []
    for stored in store.list(layout.checkpoint_sets(run_id, node).rstrip("/")):
        with suppress(ValueError):  # other keys are ignored
            found.append(layout.checkpoint_position(stored.key))
    return found


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
        for node in range(run.job.most_nodes)
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
    it, and the other's is below `node-1/`, and so on. What lies beside a checkpoint stays with it."""
    entries: dict[str, Entry] = {}
    keys: dict[str, str] = {}
    clashing: set[str] = set()
    for node, parcel in enumerate(parcels):
        inside = {one.path for one in parcel.entries if clashes(one, entries) and not one.path.endswith(BESIDE)}
        clashing |= inside
        inside |= {name_beside(path) for path in inside}
        for entry in parcel.entries:
            clash = inside & {*_with_parents(entry.path)}
            path = f"node-{node}/{entry.path}" if clash else entry.path
            entries.setdefault(path, replace(entry, path=path))
        keys |= parcel.keys
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


BEFORE = 0  # the attempt number of a copied checkpoint: before the first

Contents = Callable[[str, str], str]  # a run's id and a hash to the key of the content


class Heritage:
    def __init__(self, stores: StoreDirectory, clock: Clock, folder: Path) -> None:
        """`folder` has space for files in transit."""
        self._stores = stores
        self._clock = clock
        self._folder = folder

    def find(self, old: Run, job: Job) -> Start:
        """The last checkpoint of a run, for a run of this job. Raises NotFound where there is none, and BadInput where
        the job would not find it."""
        found = next(good_sets(self._stores.of(old), old.id, self._clock.now()), None)
        if found is None:
            raise NotFound(
                f"`{old.name}` has no checkpoint",
                hint=f"start from the beginning: `stoker rerun {old.name}`",
                cause=Cause.NO_CHECKPOINT,
            )
        paths = CheckpointPaths(job.checkpoints)
        outside = next((one.path for one in found.entries if paths.root(one.path) is None), None)
        if outside is not None:
            raise BadInput(
                f"the checkpoint of `{old.name}` contains `{outside}`, which is in none of the job's `checkpoints`",
                hint=f"keep the old `checkpoints`: {', '.join(old.job.checkpoints)}",
            )
        return Start(old.id, old.name, old.store, len(old.attempts), old.job.most_nodes, found.step)

    def bring(self, run: Run) -> None:
        """May be repeated. A set is written after everything that it refers to. Raises NotFound where the checkpoint no
        longer exists."""
        start = run.start
        if start is None:
            return
        source, target = self._stores.open(start.store), self._stores.of(run)
        for node in range(start.nodes):
            if any(True for _ in target.list(layout.checkpoint_sets(run.id, node).rstrip("/"))):
                continue
            found = self._copied(source, target, run, start, node)
            if found is None and node == 0:
                raise NotFound(f"the checkpoint of `{start.name}` no longer exists", cause=Cause.CHECKPOINT_GONE)

    def _copied(self, source: Store, target: Store, run: Run, start: Start, node: int) -> CheckpointSet | None:
        """The newest complete set."""
        for found in good_sets(source, start.run_id, self._clock.now(), node):
            with suppress(Missing, Corrupt):
                self._copy(source, target, found.entries, partial(layout.checkpoint_file, node=node), run)
                self._copy_outputs(source, target, run, node)
                ours = replace(found, attempt=BEFORE).sealed
                target.put(layout.checkpoint_set(run.id, *ours.position, node), dump(ours))
                return ours
        return None

    def _copy_outputs(self, source: Store, target: Store, run: Run, node: int) -> None:
        """Of the newest attempt that has some: each started with the outputs of the one before it."""
        assert run.start
        for attempt in range(run.start.attempts, -1, -1):
            with suppress(Missing, Malformed):
                key = layout.outputs(run.start.run_id, attempt, node)
                found = untrusted.fetch(Snapshot, source, key, untrusted.MANIFEST_BYTES, self._clock.now())
                self._copy(source, target, found.entries, layout.output, run)
                target.put(layout.outputs(run.id, BEFORE, node), dump(found))
                return

    def _copy(self, source: Store, target: Store, entries: tuple[Entry, ...], contents: Contents, run: Run) -> None:
        """Through this computer, verified in both directions."""
        assert run.start
        sizes = {one.sha256: one.size_bytes for one in entries if one.kind is EntryKind.FILE}
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="resume-") as folder:
            place = str(Path(folder, "content"))
            for sha256, size in sizes.items():  # one at a time: space for the largest is enough
                download(source, [Item(place, contents(run.start.run_id, sha256), size, sha256)])
                upload(target, [Item(place, contents(run.id, sha256), size, sha256)])
                Path(place).unlink()


log = logging.getLogger(__name__)

_PAUSE_S = 2.0  # before a store that could not be used is asked again


class Delivery:
    def __init__(self, stores: StoreDirectory, ledger: Ledger, clock: Clock) -> None:
        self._stores = stores
        self._ledger = ledger
        self._clock = clock

    async def bring(self, run: Run) -> None:
        """If the folder cannot be written to, the user is told once, and the outputs stay in the store."""
        try:
            store = await self._stores.reach(run.store)
            folder, made = await asyncio.to_thread(land, store, run, Path(run.land_in))
            await self._note(run, f"outputs landed in {folder}", landed=str(folder), made=made)
        except StoreUnavailable as error:
            log.warning("the outputs of %s wait for their store: %s", run.name, error.message)
            await asyncio.sleep(_PAUSE_S)  # requested again until the outputs are downloaded
        except StokerError as error:
            await self._not_landed(run, error.message)
        except OSError as error:
            await self._not_landed(run, f"{error.strerror}: {error.filename}")
        except Exception as error:
            log.warning("landing %s: %s", run.name, error, exc_info=error)
            await self._not_landed(run, unexpected(error).message)

    async def _not_landed(self, run: Run, problem: str) -> None:
        await self._note(run, f"outputs did not get to {run.land_in}: {problem}", problem=problem)

    async def _note(
        self, run: Run, text: str, *, landed: str = "", problem: str = "", made: Parcel | None = None
    ) -> None:
        events = [Event(self._clock.now(), "landed" if landed else "landing-failed", text)]
        facts: dict[str, Any] = {"landed": landed, "land_problem": problem}
        if made and run.job.most_nodes > 1:  # each node has counted its own, although all may have the same
            facts |= {"output_files": len(made.sizes), "output_bytes": sum(made.sizes)}
            facts["clashes"] = tuple(cut(path) for path in made.clashes[:8])
            if made.clashes:
                events.append(Event(self._clock.now(), "outputs-clash", clash_words(made.clashes)))
        await self._ledger.change(run.name, lambda seen: Decision(replace(seen, **facts), (), tuple(events)))


def unexpected(error: Exception) -> ProviderFailed:
    return ProviderFailed(f"{type(error).__name__}: {error}")

"""Copies the last checkpoint of another run, with its outputs, to where a new run starts from them.

They are copied, so that no node reads another run's part of the store, and either run can be removed independently.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from stoker.errors import BadInput, Corrupt, Malformed, Missing, NotFound
from stoker.model import untrusted
from stoker.model.checkpoint import CheckpointSet
from stoker.model.job.checkpointpaths import CheckpointPaths
from stoker.model.job.job import Job
from stoker.model.run.run import Run, Start
from stoker.model.snapshot import Entry, EntryKind, Snapshot
from stoker.model.wire import dump
from stoker.model.workspace import layout
from stoker.server.results.goodsets import good_sets
from stoker.server.rounds.outside import Clock
from stoker.server.stores.stores import StoreDirectory
from stoker.stores import Store
from stoker.stores.transfer.files import Item, download, upload

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
                f"`{old.name}` has no checkpoint", hint=f"start from the beginning: `stoker rerun {old.name}`"
            )
        paths = CheckpointPaths(job.checkpoints)
        outside = next((one.path for one in found.entries if paths.root(one.path) is None), None)
        if outside is not None:
            raise BadInput(
                f"the checkpoint of `{old.name}` contains `{outside}`, which is in none of the job's `checkpoints`",
                hint=f"keep the old `checkpoints`: {', '.join(old.job.checkpoints)}",
            )
        return Start(old.id, old.name, old.store, len(old.attempts), old.job.nodes, found.step)

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
                raise NotFound(f"the checkpoint of `{start.name}` no longer exists")

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

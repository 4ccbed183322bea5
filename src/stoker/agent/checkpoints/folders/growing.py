"""How a set grows while its folders never stop changing: complete new files join everything that it already has.

A file that was never rewritten cannot be half of two checkpoints, so it may join whatever else changes. Files that are
rewritten belong together: the set has all of them in their current version, or all in that of the last set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from stoker.agent.checkpoints.folders.files import (
    Companions,
    Partners,
    folders_of,
    is_shard,
    kind_of,
    numbers_in,
    place_of,
)
from stoker.agent.checkpoints.folders.watching import FileWatch, FoundFile
from stoker.model.snapshot import EntryKind
from stoker.stores.transfer.verified import Mark

PARTIAL_S = 10.0  # a file unchanged for this long does not wait for others of its folder
QUIET_S = 1.0  # files of one folder that were written further apart than this belong to different checkpoints
FIRST_FOLDER_S = 0.1  # how long the first folder of its kind must be unchanged
LEAST_SERIES = 2


@dataclass(frozen=True, slots=True)
class QuietTimes:
    """How long files must have been unchanged."""

    settle_s: float  # files that are written once
    quiet_s: float  # files that are rewritten together
    alone_s: float  # a file that is rewritten while no other is
    hurried: bool = False


@dataclass(frozen=True, slots=True)
class Growth:
    taken: set[str]  # in their current version
    kept: set[str]  # in the version of the last set: changed or removed since
    renewed: set[str]  # the rewritten files among `taken`
    held: set[str]  # rewritten too often to be taken


class Growing:
    """One look at folders that keep changing. `known` are the marks of the last set, and `introduced` says with which
    set each of them appeared."""

    def __init__(
        self,
        watch: FileWatch,
        known: Mapping[str, Mark | None],
        introduced: Mapping[str, int],
        skip: Collection[str],
        now: float,
    ) -> None:
        self._watch = watch
        self._known = known
        self._introduced = introduced
        self._now = now
        self._files = {one.path: one for one in watch.found if one.path not in skip}
        self.rewritten = {path for path, one in self._files.items() if self._is_rewritten(one)}
        self._new = {
            path for path, one in self._files.items() if path not in known and path not in self.rewritten and one.mark
        }

    def growth(self, pace: QuietTimes) -> Growth | None:
        """None where there is nothing to add."""
        new = Joining(self._watch, self._known, self.rewritten, self._now)
        joining = new.of(self._new, self._files, pace)
        oldest = self._oldest(self._new - joining)
        pointers = {path for path in joining if not numbers_in(path) and path not in new.in_whole_folders}
        joining -= {path for path in pointers if self._watch.since(path) >= oldest}
        renewed = self.rewritten if self._can_be_renewed(self._new - joining, pace) else set()
        if not joining and not renewed:
            return None
        same = {path for path in self._files if path in self._known and path not in self.rewritten}
        taken = same | joining | renewed
        held = self.rewritten - renewed
        return Growth(taken, (held & self._known.keys()) | self._not_dropped(taken, held), renewed, held)

    def _is_rewritten(self, one: FoundFile) -> bool:
        """Links count as rewritten: they name the current checkpoint."""
        if one.path in self._known:
            return one.mark != self._known[one.path] or self._watch.is_open(one.path)
        return one.path in self._watch.rewrites or one.entry.kind is EntryKind.LINK

    def _can_be_renewed(self, left: set[str], pace: QuietTimes) -> bool:
        """All of them are unchanged, and everything they may refer or belong to is in the set. A file that was open at
        every look may be one of them, however new it seems."""
        restless = [path for path in self.rewritten if not self._watch.settled(path, pace.quiet_s, self._now)]
        if restless and not (len(restless) == 1 and self._is_alone(restless[0], pace)):
            return False
        unfinished = set() if pace.hurried else {place_of(path) for path in left if not numbers_in(path)}
        if any(place_of(path) in unfinished and not numbers_in(path) for path in self.rewritten):
            return False
        return all(self._watch.since(path) < self._oldest(left) for path in self.rewritten)

    def _is_alone(self, path: str, pace: QuietTimes) -> bool:
        """No other file that could be rewritten alternates with it."""
        others = (other for other in self._files if other != path and self._could_be_rewritten(other, beside=path))
        if not all(self._watch.is_faster(path, self._watch.since(other)) for other in others):
            return False
        return self._watch.settled(path, pace.alone_s, self._now)

    def _could_be_rewritten(self, other: str, *, beside: str) -> bool:
        """Not one with a number, nor one in a numbered folder that `beside` merely refers to."""
        if other in self.rewritten:
            return True
        top = len(self._watch.top(other))
        below = (folder for folder in folders_of(other) if len(folder) > top and not beside.startswith(f"{folder}/"))
        return not numbers_in(other) and not any(numbers_in(folder) for folder in below)

    def _oldest(self, left: set[str]) -> float:
        """When the oldest of the omitted files was written: an older file cannot refer to any of them."""
        return min((self._watch.since(path) for path in left if not self._watch.is_open(path)), default=math.inf)

    def _not_dropped(self, taken: set[str], held: set[str]) -> set[str]:
        """Of the removed files: those that held files may refer to; those that nothing newer has replaced; and those
        whose removal, together with others, is not finished."""
        removed = {path for path in self._known if path not in self._files}
        beside = {place_of(path) for path in self._files}
        kinds = {kind_of(path) for path in self._files}
        half_gone = {path for path in removed if self._half_gone(path, beside, kinds)}
        if speaking := held & self._known.keys():
            newest_set = max(self._introduced.get(path, 0) for path in speaking)
            return half_gone | {path for path in removed if self._introduced.get(path, 0) <= newest_set}
        newest = max((_written(self._files[path].mark) for path in taken), default=0)
        return half_gone | {path for path in removed if _written(self._known[path]) >= newest}

    def _half_gone(self, path: str, beside: set[str], kinds: set[str]) -> bool:
        folder = place_of(path)
        return folder != self._watch.top(path) and folder in beside and kind_of(path) not in kinds


class Joining:
    """Which new files may join: those that share a checkpoint with no incomplete file, judging by names."""

    def __init__(self, watch: FileWatch, known: Mapping[str, Mark | None], rewritten: set[str], now: float) -> None:
        self._watch = watch
        self._now = now
        self._known = known
        inside: dict[str, set[str]] = {}
        for path in known:
            for folder in folders_of(path):
                inside.setdefault(folder, set()).add(path[len(folder) + 1 :])
        self._known_folders = inside.keys()
        self._shapes: dict[str, list[set[str]]] = {}
        for folder, names in inside.items():
            self._shapes.setdefault(kind_of(folder), []).append(names)
        self._turns = _by_place(path for path in rewritten if not numbers_in(path))
        self.in_whole_folders: set[str] = set()  # refer only to files of the same folder

    def of(self, new: set[str], there: Collection[str], pace: QuietTimes) -> set[str]:
        finished = {path for path in new if self._watch.settled(path, pace.settle_s, self._now)}
        unfinished = new - finished
        self._beside = {place: Companions(paths) for place, paths in _by_place(unfinished).items()}
        self._partners = Partners(self._known, (path for path in there if path not in unfinished))
        inside = self._by_new_folder(finished)
        being_written = self._by_new_folder(unfinished)
        waiting: set[str] = set()
        for folder, paths in inside.items():
            unfinished_inside = being_written.get(folder, set())
            if not folder or self._collects(folder, paths, unfinished_inside):
                continue
            if not unfinished_inside and self._is_complete(folder, paths):
                self.in_whole_folders |= paths
            else:
                waiting |= {path for path in paths if not self._is_old(path, folder)}
        return {path for path in finished - waiting if not self._waits_for_a_partner(path, hurried=pace.hurried)}

    def _is_old(self, path: str, folder: str) -> bool:
        long_open = self._watch.was_long_open(folder, PARTIAL_S, self._now)
        return self._watch.settled(path, PARTIAL_S, self._now) and not long_open

    def _waits_for_a_partner(self, path: str, *, hurried: bool) -> bool:
        if self._watch.settled(path, PARTIAL_S, self._now):
            return False
        here = place_of(path)
        beside = self._beside.get(here)
        if self._partners.lacking(path) or (beside and beside.have(path, hurried=hurried)):
            return True
        turns = self._turns.get(here, set())
        return not numbers_in(path) and not all(self._watch.is_faster(one, self._watch.since(path)) for one in turns)

    def _collects(self, folder: str, finished: set[str], unfinished: set[str]) -> bool:
        """A new folder is one checkpoint, and is waited for, unless it is known to collect many."""
        if all(self._watch.is_rotated(path) for path in finished | unfinished):
            return True
        young = {path for path in finished if not self._watch.settled(path, FIRST_FOLDER_S, self._now)}
        return not self._shapes_like(folder) and self._is_series(unfinished | young, finished - young)

    def _is_series(self, unfinished: set[str], finished: set[str]) -> bool:
        """More of an existing series: names that differ only in their numbers, and were not written at once."""
        for kind in {kind_of(path) for path in unfinished}:
            times = [self._watch.since(path) for path in finished if kind_of(path) == kind]
            if len(times) < LEAST_SERIES or max(times) - min(times) < QUIET_S:
                return False
        return bool(unfinished) and not any(is_shard(path) for path in unfinished)

    def _is_complete(self, folder: str, inside: set[str]) -> bool:
        """It has the files that all similar folders have: one that lacks some is half written, or half removed."""
        if self._watch.lost_something(folder, QUIET_S, self._now):
            return False
        if others := self._shapes_like(folder):
            return set.intersection(*others) <= {path[len(folder) + 1 :] for path in inside}
        return all(self._watch.settled(path, FIRST_FOLDER_S, self._now) for path in inside)

    def _shapes_like(self, folder: str) -> list[set[str]]:
        """The contents of known folders whose names differ only in their numbers."""
        return self._shapes.get(kind_of(folder), [])

    def _by_new_folder(self, paths: Iterable[str]) -> dict[str, set[str]]:
        """By the outermost folder around it that contains nothing known; empty where there is none."""
        found: dict[str, set[str]] = {}
        for path in paths:
            top = len(self._watch.top(path))
            outside_in = [folder for folder in reversed(folders_of(path)) if len(folder) > top]
            new = next((folder for folder in outside_in if folder not in self._known_folders), "")
            found.setdefault(new, set()).add(path)
        return found


def _by_place(paths: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in paths:
        found.setdefault(place_of(path), set()).add(path)
    return found


def _written(mark: Mark | None) -> int:
    return mark[1] if mark else 0

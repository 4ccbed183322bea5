"""The folder that checkpoints stand in: each appears by one rename when it is whole, and is verified before it is used.

```
step-000000123/      manifest.json, state.json, *.safetensors; with several ranks also rank-1/ …
quarantine/          what failed verification, for whoever wants to look at it
.writing-*           not whole yet; removed by the next process that starts
```
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stoker.checkpoint.read import manifests
from stoker.checkpoint.read.manifests import CheckpointManifest
from stoker.checkpoint.read.reading import OpenCheckpoint, open_as_is, open_verified
from stoker.checkpoint.save.files import sync_folder
from stoker.errors import Unreadable

_NAME = re.compile(r"step-(\d{9,})(?:-(\d+))?")
QUARANTINE = "quarantine"


class CheckpointFolder:
    """Used by one process at a time; with several ranks on a node, the first of them commits and tidies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Oldest first. What is here is whole as far as renaming goes, but not verified."""
        if not self.folder.is_dir():
            return []
        found = [match for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [match[0] for match in sorted(found, key=lambda match: (int(match[1]), int(match[2] or 1)))]

    def newest(
        self, up_to: str | None = None, fits: Callable[[CheckpointManifest], bool] = lambda _: True
    ) -> OpenCheckpoint | None:
        """The newest that fits and passes verification. What does not pass is moved aside, loudly, and the one before
        it tried."""
        for name in reversed(self.names()):
            if up_to is not None and name > up_to:
                continue
            try:
                if fits(open_as_is(self.folder / name).manifest):
                    return open_verified(self.folder / name)
            except Unreadable as error:
                self.quarantine(name, error.message)
        return None

    def quarantine(self, name: str, reason: str) -> None:
        aside = self.folder / QUARANTINE
        aside.mkdir(exist_ok=True)
        target = aside / name
        number = 1
        while target.exists():
            number += 1
            target = aside / f"{name}.{number}"
        (self.folder / name).rename(target)
        say(f"{name} is not used: {reason}; moved to {target}")

    def fresh(self, step: int, number: int) -> Path:
        """The folder in which a checkpoint is made. Several ranks may ask for the same one."""
        path = self.folder / f".writing-{step:09d}-{number}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def commit(self, made: Path, manifest: CheckpointManifest) -> Path:
        """Makes a finished folder visible. After this returns, it survives a power cut."""
        (made / manifests.NAME).write_bytes(manifest.dump())
        sync_folder(made, its_files=(manifests.NAME,))
        target = self.folder / f"step-{manifest.step:09d}"
        again = 1
        while target.exists():  # a second save at the same step, such as at the end of an epoch
            again += 1
            target = self.folder / f"step-{manifest.step:09d}-{again}"
        made.rename(target)
        sync_folder(self.folder)
        return target

    def tidy(self, keep: int, best: str | None) -> None:
        """Removes what retention does not keep. Called after a commit, never before."""
        there = [SavedCheckpoint(name, self._metrics(name) if best else {}) for name in self.names()]
        for name in {one.name for one in there} - to_keep(there, keep, best) if there else ():
            self._remove(name)

    def sweep(self) -> None:
        """Removes what a process that was killed left half-made. For the first moment of a process."""
        for pattern in (".writing-*", ".removing-*"):
            for path in self.folder.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    def _metrics(self, name: str) -> dict[str, float]:
        with suppress(OSError, Unreadable):
            return dict(manifests.load((self.folder / name / manifests.NAME).read_bytes()).metrics)
        return {}

    def _remove(self, name: str) -> None:
        """Renamed first, so that what is half-removed is never taken for a checkpoint."""
        doomed = self.folder / f".removing-{name}-{time.time_ns()}"
        with suppress(OSError):
            (self.folder / name).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def say(text: str) -> None:
    sys.stderr.write(f"stoker: checkpoint: {text}\n")
    sys.stderr.flush()


# Which checkpoints to keep. Pure: the shelf removes what is not named here.


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """One checkpoint that is there, as far as retention cares."""

    name: str
    metrics: Mapping[str, float] = field(default_factory=dict)


def to_keep(there: Sequence[SavedCheckpoint], keep: int, best: str | None = None) -> set[str]:
    """The newest `keep`, and the best by a metric. `there` is in the order of saving.

    `best` names the metric; with a leading minus less is better. Of equals the earliest is the best.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: expected at least 1")
    names = {one.name for one in there[-keep:]}
    if best:
        judged = [one for one in there if not math.isnan(score(one.metrics, best))]
        if judged:
            names.add(max(judged, key=lambda one: score(one.metrics, best)).name)
    return names


def score(metrics: Mapping[str, float], best: str) -> float:
    """More is better; not a number where the metric is not known."""
    value = metrics.get(best.lstrip("-"), math.nan)
    return -value if best.startswith("-") else value

"""The outputs and checkpoints of a first job file, from where a script writes and saves."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import NamedTuple

from stoker.client.folding import UNKNOWN
from stoker.client.script import Script
from stoker.model.checkpointpaths import DEFAULT, is_folder

_OUTPUTS = ("outputs", "output", "results", "result", "out", "models", "saved_models", "artifacts", "runs", "logs")
# Folders that hold one folder for each start of the script, or for each experiment: kept as a whole.
_OF_EXPERIMENTS = re.compile(
    r"(?i)runs?|outputs?|out|results?|logs?|experiments?|exps?|work_?dirs?|work|artifacts|saved?"
)
_MOST = 4


class Places(NamedTuple):
    outputs: str
    checkpoints: tuple[str, ...]
    resumes: bool  # the script looks for its own checkpoint
    saves: bool  # a place is known, by the script's text or by what its flags are given


def places(script: Script, given: dict[str, str], command: str, *, told_to_resume: bool = False) -> Places:
    """`given` is what its flags stand for once the command is run. What is told to resume keeps something somewhere."""
    saved = script.saving(given)
    kept = [_place(path) for path in saved.checkpoints]
    named = [top for top in script.writes if re.search(r"(?i)ckpt|checkpoint", top)]
    made = [top for top in script.writes if top not in named and top not in given.values()]
    outputs = next((place for place in _OUTPUTS if place in made), made[0] if made else "outputs")
    outputs = "outputs" if "${outputs}" in command else outputs
    if told_to_resume and not kept and (made or "${outputs}" in command):
        kept = [outputs]
    own = ["checkpoints"] if "${checkpoints}" in command else named[:1] if not kept else []
    # A model beside the script cannot be in a folder of outputs: what is kept as a checkpoint comes back as well.
    beside = [path for path in map(_place, saved.models) if not _is_in(path, outputs)]
    every = list(dict.fromkeys([*own, *kept, *beside]))
    chosen = [one for one in every if not any(_is_in(one, other) for other in every if other != one)]
    return Places(
        outputs, tuple(chosen[:_MOST]) or (DEFAULT,), saved.resumes, bool(every or made or "${outputs}" in command)
    )


def _place(path: str) -> str:
    """What is named in a job file: the folder that it is in, or the file where it lies beside the script."""
    if path.endswith("/"):
        place = path.rstrip("/")
    else:
        parts = PurePosixPath(path).parts
        if len(parts) == 1:
            return path
        if len(parts) > 2 and _OF_EXPERIMENTS.fullmatch(parts[0]):
            return parts[0]
        known = next((number for number, part in enumerate(parts) if UNKNOWN in part), len(parts) - 1)
        place = "/".join(parts[: min(max(known, 1), len(parts) - 1)])
    return place if is_folder(place) or UNKNOWN in place else f"{place}/"


def _is_in(path: str, folder: str) -> bool:
    return path.startswith(f"{folder.rstrip('/')}/") or path.rstrip("/") == folder.rstrip("/")

"""What to do where the end of a script's log reports a file that is not there, or a folder that is. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from stoker.model.job.fields import Problems
from stoker.model.job.job import Job
from stoker.model.job.sections import CheckpointPaths
from stoker.model.job.values import PlaceForData, as_input

_NOT_FOUND = re.compile(
    r"^(?:\[?[\w ]+\]?: )?(?:\w+\.)*FileNotFoundError: "
    r"(?:[^\n]*?(?<!\w)'([^'\n]{1,300})'|(\S{1,300}?) (?:was )?not found)",
    re.M,
)
_EXISTS = re.compile(r"(?i)\bexists?\b")


def hint(tail: bytes, job: Job, work: Path, code: Collection[str]) -> str:
    """Empty where the log reports neither. `work` is the working directory, `code` what was uploaded."""
    text = tail.decode(errors="replace")
    return _refused(text, job, work) or _missing(text, job, work, code)


def _refused(text: str, job: Job, work: Path) -> str:
    """Its last line says that a folder exists that Stoker created, or restored."""
    last = text.rstrip().rpartition("\n")[2][-600:]
    if not _EXISTS.search(last):
        return ""
    kept = CheckpointPaths(job.checkpoints).folders
    words = {_from_work(word.rstrip("/"), work) for word in re.split(r"[\s'\"`(),;:\[\]]+", last)}
    folder = next((one for one in (job.outputs, *kept) if one in words), "")
    if not folder:
        return ""
    if job.create_folders:
        return f"Stoker created `{folder}` before the script started: add `create_folders: false` to the job file"
    told = "name the argument with which the script resumes as `resume`"
    return f"`{folder}` was restored with its checkpoint: {told}, or another folder under `checkpoints`"


def _missing(text: str, job: Job, work: Path, code: Collection[str]) -> str:
    found = _NOT_FOUND.findall(text)
    path = _from_work("".join(found[-1]), work) if found else ""
    if not path or not _can_be_brought(path):
        return ""
    if CheckpointPaths(job.checkpoints).root(path) or f"{path}/".startswith(f"{job.outputs}/"):
        return ""  # the script did not write what it wants to read there
    place = str(PurePosixPath(path).parent)
    whole = not path.startswith("..") and place != "." and not any(one.startswith(f"{place}/") for one in code)
    line = f"`data: {{{as_input(place if whole else path)}}}`"
    read = f"`{path}` was not uploaded: if the script reads it and it exists on your computer, {line} in the job file"
    return f"{read} brings it. A folder that the script writes to is created if `outputs` or `checkpoints` names it"


def _from_work(path: str, work: Path) -> str:
    """Relative to the working directory; empty for paths elsewhere."""
    if os.path.isabs(path):  # noqa: PTH117  # text in, text out
        return os.path.relpath(path, work) if Path(path).is_relative_to(work) else ""
    return os.path.normpath(path) if path else ""


def _can_be_brought(path: str) -> bool:
    try:
        PlaceForData().read(path, "at")
    except Problems:
        return False
    return path not in (".", "..")

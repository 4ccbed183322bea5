"""What an image is built from: a copy of the code of a run, with a name that depends on all that a build can read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from pathlib import Path

from stoker.agent.machine.machine import NodeFolder
from stoker.containers import ImageSource
from stoker.model.job.job import Environment
from stoker.model.job.sections import OWN_IMAGES

_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", re.IGNORECASE | re.MULTILINE)


def image_source(wanted: Environment, folder: NodeFolder, code: Collection[str]) -> ImageSource:
    """Copies the context of a Dockerfile, by links. `code` are the paths of the code snapshot. The same on any node."""
    if not wanted.dockerfile:
        return ImageSource(image=wanted.image or "")
    context = "" if wanted.context in (None, ".") else f"{wanted.context}/"
    hashed = hashlib.sha256(json.dumps([wanted.dockerfile, wanted.context, dict(wanted.build_args)]).encode())
    for path in sorted(one for one in code if one.startswith(context) or one == wanted.dockerfile):
        hashed.update(json.dumps([path, *_copy(folder.work / path, folder.context / path)]).encode())
    dockerfile = folder.context / wanted.dockerfile
    bases = _FROM.findall(dockerfile.read_text(errors="replace")) if dockerfile.is_file() else []
    return ImageSource(
        image=f"{wanted.registry or OWN_IMAGES}:{hashed.hexdigest()[:32]}",
        base=wanted.registry or next(iter(bases), ""),
        dockerfile=str(dockerfile),
        context=str(folder.context / context),
        arguments=wanted.build_args,
    )


def _copy(file: Path, place: Path) -> tuple[str, ...]:
    """What counts of it, except for its path: kind and content."""
    if file.is_dir() and not file.is_symlink():
        place.mkdir(parents=True, exist_ok=True)
        return ("folder",)
    place.parent.mkdir(parents=True, exist_ok=True)
    if file.is_symlink():
        place.symlink_to(file.readlink())
        return ("link", str(file.readlink()))
    place.hardlink_to(file)
    hashed = hashlib.sha256()
    with file.open("rb") as read:
        while piece := read.read(1 << 20):
            hashed.update(piece)
    return ("file", str(file.stat().st_mode & 0o111), hashed.hexdigest())

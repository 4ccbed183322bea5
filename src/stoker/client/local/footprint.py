"""What Stoker has left on this computer, and its removal: only files with names that Stoker uses."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.client.settings import ClientSettings
from stoker.model.workspace.home import Home
from stoker.stores.trees.clearing import clear

_MOUNTS = Path("/proc/self/mountinfo")
_REST = "settings, logs and the addresses of server and accounts"


@dataclass(frozen=True, slots=True)
class FootprintPart:
    """One item, and all files that belong to it."""

    what: str
    places: tuple[Path, ...]
    size_bytes: int = 0


def is_home(settings: ClientSettings) -> bool:
    """Whether Stoker has ever used the folder. Another folder may have a `cache` or a `store` of its own."""
    home = settings.home
    marks = (*home.root.glob(f"{home.database.name}*"), *_server(home), home.server_log, home.trees)
    return any(os.path.lexists(mark) for mark in marks)


def parts(settings: ClientSettings) -> list[FootprintPart]:
    """Everything that would be removed, in order: the files that prove that there were runs go last."""
    home = settings.home
    named = {
        "the cache of datasets": (home.cache,),
        "environments": (home.environments,),
        "working folders of runs": (home.nodes, home.secrets, *home.root.glob("resume-*/")),
        "the twin": (home.twin,),
        "Azurite": (home.azurite,),
        "runs, datasets and code in the store `folder`": (home.store,),
        "packages cached for runs": (home.software,),
        "prices, packed agents and indexes": (home.prices, home.agents, home.trees, home.root / "ssh"),
        _REST: tuple(_small(home)),
        "the database": (*home.root.glob(f"{home.database.name}*"), *_server(home)),
    }
    found = []
    for what, places in named.items():
        there = tuple(dict.fromkeys(place for place in places if os.path.lexists(place)))
        if there:
            found.append(FootprintPart(what, there, sum(_size(place) for place in there)))
    return found


def _small(home: Home) -> Iterator[Path]:
    yield from (home.workspaces, home.workspace, home.stores, home.credentials, home.prune_rule)
    yield from (home.root / name for name in ("agents.log", "azure.json", "azure.record"))
    yield home.server_log


def _server(home: Home) -> tuple[Path, ...]:
    return (
        *home.root.glob("server.json*"),
        *home.root.glob(".server.json.*.part"),
        home.socket,
        home.server_id,
        home.alive_lock,
        home.start_lock,
    )


def stays(settings: ClientSettings) -> list[str]:
    """What is not Stoker's, or may be shared: it is listed, and left alone."""
    home, known = settings.home, [place for part in parts(settings) for place in part.places]
    foreign = sorted(home.root / name for name in _names(home.root) if home.root / name not in known)
    linked = [f"{place.resolve()}, the target of {place}" for place in known if place.is_symlink()]
    cache = settings.variable("STOKER_CACHE")
    caches = [f"the cache of datasets in {cache} (STOKER_CACHE)"] if cache else []
    return [*map(str, foreign), *linked, *caches]


def mounts(settings: ClientSettings) -> list[str]:
    """What is mounted below any of it, the inner mounts first. The target of a link stays, mounted or not."""
    places = [place for part in parts(settings) for place in part.places if not place.is_symlink()]
    tops = [os.path.realpath(place) for place in places]
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    mounted = [re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines]
    return [one for one in reversed(mounted) if any(one == top or one.startswith(f"{top}/") for top in tops)]


def remove(settings: ClientSettings) -> list[str]:
    """Removes all of it, and the folder itself if it is empty then. May be repeated or interrupted. Returns what could
    not be removed, and why."""
    failed = [f"{place} could not be unmounted" for place in mounts(settings) if not _unmount(place)]
    if failed:  # a mount may be somebody's data
        return failed
    for part in parts(settings):
        for place in part.places:
            try:
                clear(str(place))
            except OSError as error:
                failed.append(f"{place}: {error.strerror or error}")
    with suppress(OSError):  # something else is in it
        settings.home.root.rmdir()
    return failed


def _unmount(place: str) -> bool:
    for words in (["umount", "-l", place], ["fusermount3", "-uz", "--", place], ["fusermount", "-uz", "--", place]):
        if shutil.which(words[0]) and not subprocess.run(words, capture_output=True).returncode:
            return True
    return False


def _names(folder: Path) -> set[str]:
    try:
        return {one.name for one in folder.iterdir()}
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return set()


def _size(place: Path) -> int:
    """On the disk, without following links or entering mounts."""
    seen: dict[tuple[int, int], int] = {}
    waiting = [os.fspath(place)]
    while waiting:
        with suppress(OSError):
            path = waiting.pop()
            found = os.lstat(path)
            seen[found.st_dev, found.st_ino] = found.st_blocks * 512
            if stat.S_ISDIR(found.st_mode) and not os.path.ismount(path):
                waiting += [entry.path for entry in os.scandir(path)]
    return sum(seen.values())

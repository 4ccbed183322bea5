"""Container engines: what is asked of one, and which are installed. Standard library only, because agents carry this
package; never what a run is, or what becomes of it.

An engine is a class behind an entry point of the group `stoker.containers`. An agent has the engines that are packed
with it.
"""

from __future__ import annotations

import json
import pkgutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Protocol

GROUP = "stoker.containers"
DISCARD_S = 60.0
CARRIED = "carried.json"  # in a packed agent, next to this file: its engines, by name


@dataclass(frozen=True, slots=True)
class EngineFeatures:
    """How engines differ. The rest of Stoker asks these fields, never which engine it is."""

    program: str  # its command
    install: str  # the command that installs it
    variables: tuple[str, ...] = ()  # prefixes of variables that configure it
    socket: str = ""  # the variable that names its socket; empty: it has none
    gpus: tuple[str, ...] = ()  # options that give a container all GPUs
    keep_user: tuple[str, ...] = ()  # options with which the user has the same id inside, for an engine without root
    attendants: tuple[str, ...] = ()  # names of processes that it leaves beside a container
    isolates: bool = True  # a container has processes, limits and shared memory of its own, and read-only inputs
    plain: tuple[str, ...] | None = ()  # options with which it speaks to a registry without TLS; None: it does not
    login_variables: tuple[str, str] = ("", "")  # those with user and password of a registry, where it reads no file
    login: tuple[str, str] = ("", "")  # the variable that names its logins, and their file there; empty: it is the file


@dataclass(frozen=True, slots=True)
class ImageSight:
    id: str
    architecture: str
    entrypoint: tuple[str, ...] = ()
    digest: str = ""  # in its registry; empty: it is from none
    place: str = ""  # what containers are started from, if not from its id


@dataclass(frozen=True, slots=True)
class EngineSight:
    """What one engine says of itself, and of an image."""

    name: str
    version: str = ""
    architecture: str = ""  # as images name it, such as `amd64`
    rootless: bool = False
    gpus: bool = True  # as far as it says
    trouble: str = ""  # why it cannot be used; empty: it can
    hint: str = ""
    image: ImageSight | None = None  # None: the engine does not have it yet


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """Where an image comes from: a registry, or, with a Dockerfile, a build."""

    image: str  # its name; of a build, the one that it gets
    dockerfile: str = ""  # a path; empty: it is pulled
    context: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    base: str = ""  # of a build: the image whose registry may require a login
    plain: bool = False  # the registry has no TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """A container that lives as long as its standard input is open. Nothing in it is secret: engines write it down."""

    key: str  # of the node: a label, part of its name, and a variable of all its processes
    mark: str  # the name of that variable
    image: str  # its id or its name; its place, where the engine says one
    script: str  # what its shell runs
    user: tuple[int, int] | None  # uid and gid; None: root inside is the user outside
    keeps_user: bool = False  # an engine without root: the user's own id inside
    folders: Sequence[str] = ()  # at the same paths inside
    inputs: Sequence[str] = ()  # the same, read-only
    work: str
    shared_bytes: int  # of /dev/shm
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # soft and hard
    gpus: bool = False


class ContainerEngine(Protocol):
    """Only `look` does anything. The others return a command line: running it twice is harmless, except for `start`,
    which refuses a second container of one key."""

    name: ClassVar[str]
    features: ClassVar[EngineFeatures]

    def look(self, image: str, variables: Mapping[str, str]) -> EngineSight: ...
    def obtain(self, source: ImageSource) -> list[str]: ...
    def push(self, image: str, *, plain: bool = False) -> list[str]: ...
    def name_image(self, image: str, name: str) -> list[str]: ...
    def discard(self, image: str) -> list[str]:
        """Removes a name of an image, and the image with its last one."""
        ...

    def start(self, request: ContainerRequest) -> list[str]: ...
    def enter(
        self, request: ContainerRequest, words: Sequence[str], *, passed: Sequence[str] = (), terminal: bool = False
    ) -> list[str]:
        """Runs a command in the container, with the standard input of the caller. `passed` are names of variables that
        it gets from the caller."""
        ...

    def remove(self, key: str) -> list[str]: ...


@cache
def engines() -> Mapping[str, ContainerEngine]:
    """Every installed engine, by name; in an agent, every engine that it carries."""
    found = _carried() or _installed()
    made: list[ContainerEngine] = [pkgutil.resolve_name(value)() for _, value in sorted(found.items())]
    return {engine.name: engine for engine in made}


def settings(engine: ContainerEngine, variables: Mapping[str, str]) -> dict[str, str]:
    """Which of these variables its command needs: none of a script's."""
    usual = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_RUNTIME_DIR")
    kept = (*engine.features.variables, "SSL_CERT_")
    return {
        name: value
        for name, value in variables.items()
        if name in usual or name.startswith(kept) or name.lower().endswith("_proxy")
    }


def survey(image: str, variables: Mapping[str, str]) -> list[EngineSight]:
    """All engines of this computer, the best one first: one that has the image, else one that can be used, rather
    one that isolates."""
    seen = [engine.look(image, settings(engine, variables)) for engine in engines().values()]
    return sorted(seen, key=best)


def discard(image: str, variables: Mapping[str, str]) -> None:
    """From every engine of this computer that has it and needs it for no container."""
    for engine in engines().values():
        own = settings(engine, variables)
        if engine.look(image, own).image is not None:
            with suppress(OSError, subprocess.SubprocessError):
                words = engine.discard(image)
                subprocess.run(words, env=own, stdin=subprocess.DEVNULL, capture_output=True, timeout=DISCARD_S)


def best(seen: EngineSight) -> tuple[bool, bool, bool]:
    """The least first."""
    known = engines().get(seen.name)
    return bool(seen.trouble), seen.image is None, known is None or not known.features.isolates


def troubles(seen: Sequence[EngineSight]) -> tuple[str, str]:
    """Why none of them can be used, and what to do about the first that is installed."""
    said = "; ".join(f"{one.name}: {one.trouble}" for one in seen) or "none is known"
    hints = [one.hint for one in sorted(seen, key=lambda one: one.trouble == ABSENT)]
    return f"no container engine can be used here ({said})", next((hint for hint in hints if hint), "")


ABSENT = "not installed"


def _carried() -> dict[str, str]:
    try:
        found: dict[str, str] = json.loads(pkgutil.get_data("stoker.containers", CARRIED) or b"{}")
    except OSError:
        return {}
    return found


def _installed() -> dict[str, str]:
    from importlib.metadata import entry_points  # takes longer to load than a packed agent needs to begin

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}

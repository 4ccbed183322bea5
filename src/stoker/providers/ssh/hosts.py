"""The hosts: a file of them, which node is on which, kept in the server's home, and the container engines of each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stoker.containers import EngineSight, best, troubles
from stoker.errors import JobInvalid, Problem, ProviderFailed
from stoker.files import write_whole
from stoker.model import wire
from stoker.providers.ssh.link import HostLink, uploaded

# What ssh takes as a destination, and nothing that it would take for an option or a shell for a command.
_NAME = re.compile(r"(?:ssh://)?(?:[A-Za-z0-9._-]+@)?(?:[A-Za-z0-9_][A-Za-z0-9._-]*|\[?[0-9A-Fa-f:]+\]?)(?::[0-9]+)?/?")
_SLOTS = re.compile(r"slots=([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class SshHost:
    name: str  # as ssh knows it: an alias of the user's configuration, a name or an address
    slots: int = 1  # nodes that it may have at once


def hosts(text: str) -> tuple[SshHost, ...]:
    """In the order of the file; what follows a `#` is a comment. Raises JobInvalid with the line."""
    found: dict[str, SshHost] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        one = _host(words, number)
        if one.name in found:
            raise _invalid(number, one.name, "each host once")
        found[one.name] = one
    return tuple(found.values())


def _host(words: list[str], number: int) -> SshHost:
    name, rest = words[0], words[1:]
    if not _NAME.fullmatch(name):
        raise _invalid(number, name, "a host as in `ssh HOST`: HOST or USER@HOST")
    if not rest:
        return SshHost(name)
    slots = _SLOTS.fullmatch(rest[0])
    if slots is None or len(rest) > 1:
        raise _invalid(number, " ".join(rest), f"nothing or `slots=N` after `{name}`")
    return SshHost(name, int(slots[1]))


def _invalid(line: int, found: str, expected: str) -> JobInvalid:
    return JobInvalid([Problem("hosts", f"`{found}` in line {line}", expected)])


@dataclass(frozen=True, slots=True)
class HostedNode:
    key: str
    host: str
    slots: int  # of the host
    gang: str = ""
    sent: bool = False  # the host was asked to start it: from here on it stays with this host
    tunnelled: bool = False  # its host cannot reach the stores of its run: the connection carries everything
    abandoned: bool = False  # it is to be stopped, and its host does not answer: it may not use the store any more


class NodeRecords:
    """Called from several threads; one server at a time has the home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def all(self) -> list[HostedNode]:
        found = []
        for path in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, TypeError):  # removed meanwhile
                found.append(HostedNode(**json.loads(path.read_text(encoding="utf-8"))))
        return found

    def get(self, key: str) -> HostedNode | None:
        try:
            return HostedNode(**json.loads(self._path(key).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def keep(self, node: HostedNode) -> HostedNode:
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self._path(node.key), json.dumps(asdict(node)), mode=0o600)
        return node

    def abandon(self, node: HostedNode) -> None:
        self.keep(replace(node, abandoned=True))

    def forget(self, key: str) -> None:
        with self._lock:
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        """Keys are made by the server; one that is not a name has no file."""
        return self._folder / f"{os.path.basename(key)}.json"  # noqa: PTH119  # text in, text out


_WITHIN_S = 60.0


def engines_of(link: HostLink, agent: Path, image: str = "") -> list[EngineSight]:
    """The best one first. Raises ProviderFailed where the host does not answer."""
    uploaded(link, agent)
    said = link.ask("engines", _WITHIN_S, agent=agent.name, image=image)["said"]
    try:
        return list(wire.load(tuple[EngineSight, ...], said.encode()))
    except (KeyError, TypeError, ValueError) as error:
        raise ProviderFailed(f"host `{link.host}`: its answer cannot be read: {error}") from None


def require_engine(link: HostLink, agent: Path) -> None:
    """Raises ProviderFailed with the reason where the host has none that can be used."""
    seen = engines_of(link, agent)
    if not seen or seen[0].trouble:
        why, hint = troubles(seen)
        raise ProviderFailed(f"host `{link.host}`: {why}", hint=hint)


def best_of(answers: Iterable[list[EngineSight] | None]) -> list[EngineSight] | None:
    """Of the host that suits best: a node is only started where there is an engine. None: no host answered."""
    known = [one for one in answers if one is not None]
    return min(known, key=lambda seen: best(seen[0]) if seen else (True, True)) if known else None

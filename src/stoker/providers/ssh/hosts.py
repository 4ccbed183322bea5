"""A file of hosts: one a line, `HOST [slots=N]`, as `ssh HOST` reaches them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stoker.errors import JobInvalid, Problem

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
    for number, line in enumerate(text.splitlines(), 1):
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

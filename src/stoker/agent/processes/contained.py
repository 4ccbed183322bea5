"""Ranks in a container: what is started on the node in their place. Pure: nothing is started here.

The engine's command runs on the node for each rank, as long as the rank does, and ends with its exit code. It stands
in for the rank: processes inside name it in their environment, and count as its children (`family.look`), so that
signals, stacks and CPU time are those of the script. What a rank is told goes through the standard input of that
command: neither a process list nor the engine's own files ever have it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.agent.processes.family import STANDIN
from stoker.agent.processes.launch import RankCommand, Workplace
from stoker.files import write_whole

_SHELL = "/bin/sh"
_NAME = re.compile(r"(?!PYTHONPATH$)[A-Za-z_][A-Za-z0-9_]*")
_AS_STANDIN = (_SHELL, "-c", f'{STANDIN}=$$ exec "$@"', "stoker")
READS = (_SHELL, "-c", 'eval "$(cat)"')  # what runs inside: the text that it is given


@dataclass(frozen=True, slots=True)
class ContainerEntry:
    """How processes get into the container of a node."""

    words: tuple[str, ...]  # the engine's command that runs `READS` inside
    variables: Mapping[str, str] = field(repr=False)  # of that command
    file: Path  # what a shell inside reads for people, without the secrets of the run
    through: tuple[str, ...] = ()  # for people: up to the command that they want
    on_terminal: tuple[str, ...] = ()
    stands_in: bool = True  # the engine's command is another process than that inside; else it becomes that

    def write(self, env: Mapping[str, str], work: Path) -> None:
        lines = [*surroundings(env, work), 'exec "${@:-/bin/sh}"']
        write_whole(self.file, os.fsencode("\n".join(lines)), mode=0o600)


def contained(command: RankCommand, entry: ContainerEntry, place: Workplace) -> RankCommand:
    """`command`, inside. It prints to the outlet of its log."""
    text = spelled(command.env, place.folder.work, command.argv, outlet(place.folder.log(command.rank)))
    return replace(command, argv=standin(entry), env=entry.variables, script=text, stands_in=entry.stands_in)


def standin(entry: ContainerEntry) -> tuple[str, ...]:
    return (*_AS_STANDIN, *entry.words) if entry.stands_in else entry.words


def spelled(env: Mapping[str, str], work: Path, words: Sequence[str], out: Path | None = None) -> str:
    """What the shell inside reads: `words` get no input, and print to `out`, or to the process that started them."""
    printed = f" >{shlex.quote(str(out))} 2>&1" if out else ""
    return "\n".join([*surroundings(env, work), f"exec </dev/null{printed}", f"exec {shlex.join(words)}"])


def surroundings(env: Mapping[str, str], work: Path) -> list[str]:
    """A variable of the image stays unless it is set here; paths that Python imports from are added to those of the
    image. No shell can set those with other names, such as `my-app_proxy`."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items() if _NAME.fullmatch(name)]
    if env.get("PYTHONPATH"):
        lines.append(f'export PYTHONPATH={shlex.quote(env["PYTHONPATH"])}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    return [*lines, f"cd {shlex.quote(str(work))} || exit 125"]


def outlet(log: Path) -> Path:
    """The pipe to a log, by name: a rank inside opens it by itself, so that the engine is not between the two."""
    return log.with_suffix(".out")

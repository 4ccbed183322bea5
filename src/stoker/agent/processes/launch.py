"""What a rank is told: its command line, its environment and its inputs. Nothing is started here.

In a container, the engine's command runs on the node for each rank, as long as the rank does, and ends with its exit
code. It stands in for the rank: processes inside name it in their environment, and count as its children
(`family.look`), so that signals, stacks and CPU time are those of the script. What a rank is told goes through the
standard input of that command: neither a process list nor the engine's own files ever have it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.machine.machine import NodeFolder
from stoker.agent.processes.family import MARK, STANDIN
from stoker.files import write_whole
from stoker.model.cause import Cause
from stoker.model.job.commandline import NEWEST, NUMBER, substitute, with_notebooks, with_resume
from stoker.model.job.job import Job, Launcher
from stoker.model.job.sections import DEFAULT, is_folder
from stoker.model.orders import Orders, Terminal

# Which of the agent's own variables a rank inherits: these, and those with these prefixes and suffixes.
_INHERITED = " PATH HOME USER LOGNAME SHELL LANG TZ TMPDIR TERM LD_LIBRARY_PATH REQUESTS_CA_BUNDLE CURL_CA_BUNDLE "
_BEGINNINGS = ("LC_", "SSL_CERT_", "PIP_", "UV_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_", "DYLD_", "XDG_")
_ENDINGS = ("_proxy", "_PROXY")
# In the packed agent, what the script's Python loads first: for stacks of a run that hangs, and for `exact: true`.
_STACKS, _EXACT = "stoker/checkpoint/startup", "stoker/checkpoint/exact/startup"


@dataclass(frozen=True, slots=True)
class RankCommand:
    """One process to start: a rank, or a launcher that starts the ranks of this node itself."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    ranks: tuple[int, ...] = ()  # that it launches, and stops when it is stopped; empty: it is a rank
    files: Mapping[str, str] = field(default_factory=dict, repr=False)  # that it needs, by name in `NodeFolder.launch`
    line: int | None = None  # a file descriptor that it gets as number 3, and nobody else keeps
    terminal: Terminal | None = None
    script: str = field(default="", repr=False)  # it is a rank in a container, or stands in for it, which reads this
    stands_in: bool = False  # of a container, see `ContainerEntry`

    @property
    def launches(self) -> bool:
        return bool(self.ranks)


@dataclass(frozen=True, slots=True)
class RemoteStart:
    """How `mpirun` on the first node starts its daemons on the others."""

    hosts: Mapping[int, tuple[str, int]] = field(default_factory=dict)  # on the first node: where the others listen
    secret: str = field(default="", repr=False)  # which proves that a caller is of this attempt
    command: str = ""  # on another node: what it was asked to run
    line: int | None = None  # there: the connection, which ends with the command


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where the ranks run: what launching needs to know about the node."""

    folder: NodeFolder
    python: str  # empty: the container has none that can import stoker
    bin: str  # first in PATH; empty: PATH is unchanged
    venv: str  # empty: none
    imports: str  # an additional folder that scripts import from; empty: none
    library: Path  # the packed agent, from which a script can import stoker
    variables: Mapping[str, str]  # the agent's own
    processes: int  # ranks on this node
    port: int
    newest: str = ""  # what to resume from, in the working directory; empty: nothing was restored
    workers: tuple[str, ...] = ()  # `address:port` for each rank of the run, free when all were ready
    remote: RemoteStart = RemoteStart()  # for `launcher: mpi` on several nodes
    interface: str = ""  # by which the nodes of a gang reach each other; empty: it is unknown, or there is one node
    entry: ContainerEntry | None = None  # of the container that the ranks run in; None: they run on the node itself


def command_line(orders: Orders, folder: NodeFolder, newest: str = "") -> str:
    """The job's command with our references filled in, ready for a shell; with the arguments of `resume` if there is
    something to resume from."""
    values = {
        "outputs": folder.work / orders.job.outputs,
        "checkpoints": folder.work / _checkpoints(orders),
        **{f"data.{name}": path for name, path in orders.data.items()},
    }
    quoted = {name: shlex.quote(str(value)) for name, value in values.items()}
    resume = orders.job.resume or ""
    if "=" in newest:  # as `epoch=3.ckpt`: in `key=value`, Hydra and OmegaConf take it only as a text in quotes
        resume = _PAIRED.sub(rf"""\1'"'${{{NEWEST}}}'"'""", resume)
    arguments = substitute(resume, quoted | _resuming(folder, newest)) if newest else ""
    if f"${{{NUMBER}}}" in arguments:
        arguments = ""  # nothing has a number yet: the script starts over, as without a checkpoint
    line = with_notebooks(with_resume(substitute(orders.job.run, quoted), arguments))
    word = line.split(maxsplit=1)[0]
    single = not set(line.strip()) & _OPERATORS and not set(word) & _NOT_IN_NAMES and f" {word} " not in _SHELL_WORDS
    return f"exec {line.strip()}" if single else line


_PAIRED = re.compile(rf"(?<!\S)(\+{{0,2}}[A-Za-z_][\w.]*=)\$\{{{re.escape(NEWEST)}\}}(?!\S)")
_NUMBERED = re.compile(r"(?i)(?:epoch|step|iter)\D{0,6}(\d+)")


def _resuming(folder: NodeFolder, newest: str) -> dict[str, str]:
    """What only `resume` may refer to. The number is that of the epoch, step or iteration in the name, or else the last
    one in it."""
    name = Path(newest).name
    numbers = _NUMBERED.findall(name) or re.findall(r"\d+", name)[-1:]
    found = {NUMBER: str(int(numbers[0]))} if numbers else {}
    return {NEWEST: shlex.quote(str(folder.work / newest)), **found}


# A single command replaces its shell, so that signals and exit codes are its own. Any other line is unchanged.
_OPERATORS = frozenset(";&|<>()`\n")
_NOT_IN_NAMES = frozenset("=!{}$'\"\\*?[]~#%^")
_SHELL_WORDS = (
    " . alias bg break case cd command continue do done echo elif else esac eval exec exit export false fg fi for"
    " function getopts hash if in jobs kill let local printf pwd read readonly return select set shift source test"
    " then time times trap true type typeset ulimit umask unalias unset until wait while "
)


def _is_inherited(name: str) -> bool:
    return f" {name} " in _INHERITED or name.startswith(_BEGINNINGS) or name.endswith(_ENDINGS)


def environment(orders: Orders, place: Workplace) -> dict[str, str]:
    """The environment of every rank of this node, except for its own number."""
    env = {name: value for name, value in place.variables.items() if _is_inherited(name)}
    job = orders.job
    env["PYTHONUNBUFFERED"] = "1"
    if not place.entry:  # an image has a PATH of its own
        env["PATH"] = path(place)
    if orders.terminal:
        env["TERM"] = orders.terminal.kind
    if place.venv:
        env["VIRTUAL_ENV"] = place.venv
    env |= {
        "STOKER_RUN": orders.run_name,
        "STOKER_ATTEMPT": str(orders.attempt),
        "STOKER_OUTPUTS": str(place.folder.work / job.outputs),
        "STOKER_CHECKPOINTS": str(place.folder.work / _checkpoints(orders)),
        "STOKER_METRICS": str(place.folder.metrics),
        "STOKER_NOTICE": str(place.folder.notice),
        "STOKER_FINISHED": str(place.folder.finished),
        "STOKER_STOP": str(place.folder.stop),
        "STOKER_TOLL": str(place.folder.toll),
        MARK: orders.key,
        **{f"STOKER_DATA_{name.upper()}": path for name, path in orders.data.items()},
    }
    if orders.evictions_per_hour is not None:
        env["STOKER_EVICTIONS_PER_HOUR"] = f"{orders.evictions_per_hour:.6g}"
    if job.is_elastic:
        env["STOKER_FULL_WORLD_SIZE"] = str(job.most_nodes * place.processes)
    if place.interface and not place.entry:  # a container has interfaces of its own
        # By default gloo listens where the machine's name leads, which on many machines is the loopback.
        env["GLOO_SOCKET_IFNAME"] = place.interface
    env |= job.env
    env |= {name: place.variables[name] for name in job.secrets if name in place.variables}
    if job.secrets:
        env["STOKER_SECRETS"] = " ".join(name for name in job.secrets if name != job.environment.login)
    given = job.env.get("PYTHONPATH") or place.variables.get("PYTHONPATH", "")
    # First, so that their `sitecustomize` is found before any other: each runs the next one.
    hooks = [str(place.library / hook) for hook, wanted in ((_STACKS, job.hang), (_EXACT, job.exact)) if wanted]
    library = str(place.library) if place.python else ""  # none that is too old to import it
    env["PYTHONPATH"] = os.pathsep.join(
        part for part in (*(hooks if library else ()), given, place.imports, library) if part
    )
    return env


def path(place: Workplace) -> str:
    rest = place.variables.get("PATH") or "/usr/local/bin:/usr/bin:/bin"
    return f"{place.bin}:{rest}" if place.bin else rest


def _checkpoints(orders: Orders) -> str:
    """The value of `${checkpoints}`: the first named folder, if any."""
    return next((one.rstrip("/") for one in orders.job.checkpoints if is_folder(one)), DEFAULT)


# The ports of the ranks on a single node. Several nodes agree on theirs when they meet.


def free_ports(orders: Orders, processes: int) -> list[int]:
    """The rendezvous port, and one for each rank; none of a single rank, unless a launcher makes it meet itself, or it
    may have peers in another attempt."""
    meets = orders.job.launcher in (Launcher.TORCHRUN, Launcher.MPI) or orders.job.is_elastic
    if orders.nodes > 1 or (processes == 1 and not meets):
        return [0]
    import socket  # here, because it is slow to import and most runs have one rank

    probes = [socket.socket() for _ in range(processes + 1)]
    try:
        for probe in probes:
            probe.bind((orders.master_address, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


# Links inputs to where a script expects them: in its working directory or next to it.


def levels_above(job: Job) -> int:
    """How many levels above the working directory the highest input is."""
    return max((use.at.split("/").count("..") for use in job.data.values() if use.at), default=0)


def place_inputs(work: Path, orders: Orders) -> None:
    """An existing folder of the code keeps its files, and gets those of the input in addition.

    Raises Broken where a file is in the way.
    """
    for name, use in orders.job.data.items():
        if use.at and name in orders.data:
            at = Path(os.path.normpath(work / use.at))  # never by way of a link in the code
            _link(at, Path(orders.data[name]), use.at)


def chosen(job: Job, places: Mapping[str, str]) -> dict[str, str]:
    """Where each input is: its folder, or the file in it that the job names. Raises Broken where that does not
    exist."""
    found = dict(places)
    for name, place_inputs in places.items():
        use = job.data.get(name)
        if use and use.file:
            found[name] = str(Path(place_inputs, use.file))
            if not Path(found[name]).is_file():
                what = f"`{use.dataset}` has no file `{use.file}`, which `data.{name}.file` names"
                raise AttemptBroken(
                    what, f"list its files with `stoker data show {use.dataset}`", cause=Cause.FILE_MISSING
                )
    return found


def _link(at: Path, source: Path, shown: str) -> None:
    if at.is_dir() and not at.is_symlink() and source.is_dir():
        for entry in sorted(source.iterdir()):
            if not (at / entry.name).exists():
                _link(at / entry.name, entry, f"{shown}/{entry.name}")
        return
    if at.is_symlink() or at.exists():
        raise AttemptBroken(
            f"`at: {shown}` cannot be created: the code has a file of that name",
            "choose another path",
            cause=Cause.PATH_TAKEN,
        )
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(source, target_is_directory=source.is_dir())
    except OSError as error:
        raise AttemptBroken(
            f"`at: {shown}` cannot be created: {error.strerror}", "choose another path", cause=Cause.PATH_TAKEN
        ) from error


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

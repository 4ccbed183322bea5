"""What starts ranks in a command line (`torchrun`, `mpirun`, `srun`): taken off, because `launcher` and `processes` of
the job file stand for it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_TORCH_FLAGS = {"standalone", "no-python", "run-path", "use-env", "m", "module"}
_MPI_TWO = {"map-by", "bind-to", "rank-by", "hostfile", "host", "H", "machinefile", "N", "npernode", "ppn", "wdir"}
_MPI_TWO |= {"prefix", "report-bindings-to", "rf", "rankfile"}
_SRUN_TWO = {"n": "ntasks", "N": "nodes", "c": "cpus-per-task", "w": "nodelist", "p": "partition", "G": "gpus"}
_SRUN_TWO |= {"o": "output", "e": "error", "J": "job-name", "A": "account", "t": "time", "m": "distribution"}
_SRUN_FLAGS = {"label", "unbuffered", "exclusive", "overlap", "exact", "verbose", "quiet", "no-kill", "multi-prog"}
_SRUN_FLAGS |= {"l", "u", "v", "Q", "K", "kill-on-bad-exit", "k", "pty", "propagate", "container-mount-home"}
_SRUN_FLAGS |= {"container-writable", "no-container-mount-home", "container-remap-root"}


@dataclass(slots=True)
class Launched:
    """A command without its launcher."""

    command: str
    launcher: str = ""  # `torchrun`, `mpi`, `srun` or nothing
    options: dict[str, str] = field(default_factory=dict)  # of the launcher, without dashes; underscores as dashes
    env: dict[str, str] = field(default_factory=dict)


_WORD = re.compile(r"""\s*((?:[^\s'"\\]|\\.|'[^']*'|"(?:\\.|[^"\\])*"|\$\([^)]*\))+)""", re.S)


def words_of(line: str) -> list[tuple[str, int]]:
    """The raw words with where each begins: quotes stay, so that the rest of the line is unchanged."""
    return [(found[1], found.start(1)) for found in _WORD.finditer(line)]


def bare(raw: str) -> str:
    try:
        return "".join(shlex.split(raw)) if raw else ""
    except ValueError:
        return raw


def unwrapped(line: str) -> Launched | None:
    """The command that the launcher at the beginning of the line starts; None where there is no launcher."""
    words = words_of(line)
    names = [PurePosixPath(bare(raw)).name for raw, _ in words[:4]]
    if names and names[0] == "exec":
        return unwrapped(line[words[1][1] :]) if len(words) > 1 else None
    if names[:1] == ["torchrun"]:
        return _torchrun(line, words, 1)
    if len(names) > 2 and names[0].startswith("python") and names[1] == "-m" and names[2].startswith("torch.distrib"):
        return _torchrun(line, words, 3)
    if names[:1] in (["mpirun"], ["mpiexec"]):
        return _options(line, words, "mpi", flags=set(), two=_MPI_TWO | {"np", "n", "c"})
    if names[:1] == ["srun"]:
        return _options(line, words, "srun", flags=_SRUN_FLAGS, two=set(_SRUN_TWO))
    return None


def _torchrun(line: str, words: list[tuple[str, int]], at: int) -> Launched | None:
    options: dict[str, str] = {}
    module = False
    while at < len(words) and words[at][0].startswith("-"):
        name, equals, value = bare(words[at][0]).lstrip("-").partition("=")
        name = name.replace("_", "-")
        module |= name in ("m", "module")
        at += 1
        if not equals and name not in _TORCH_FLAGS and at < len(words):
            value = bare(words[at][0])
            at += 1
        if name not in ("m", "module", "use-env"):
            options[name] = value
    if at >= len(words):
        return None
    start = "" if "no-python" in options else "python -m " if module else "python "
    return Launched(start + line[words[at][1] :], "torchrun", options)


def _options(
    line: str, words: list[tuple[str, int]], launcher: str, *, flags: set[str], two: set[str]
) -> Launched | None:
    found = Launched("", launcher)
    at = 1
    while at < len(words) and words[at][0].startswith("-"):
        word = bare(words[at][0])
        name, equals, value = word.lstrip("-").partition("=")
        at += 1
        if name == "x" and launcher == "mpi" and at < len(words):
            key, _, given = bare(words[at][0]).partition("=")
            found.env[key] = given
            at += 1
            continue
        if name in ("mca", "omca") and launcher == "mpi":
            found.options[name] = " ".join(bare(raw) for raw, _ in words[at : at + 2])
            at += 2
            continue
        short = re.fullmatch(r"-([A-Za-z])(\d.*)", word) if launcher == "srun" else None
        if short:
            name, value = short[1], short[2]
        elif not equals and (name in two or _takes_next(words, at, name, launcher, flags)):
            value = bare(words[at][0]) if at < len(words) else ""
            at += 1
        found.options[_SRUN_TWO.get(name, name) if launcher == "srun" else name] = value
    if at >= len(words):
        return None
    found.command = line[words[at][1] :]
    return found


def _takes_next(words: list[tuple[str, int]], at: int, name: str, launcher: str, flags: set[str]) -> bool:
    """A long option of `srun` that is not known as a flag takes the next word, unless that looks like a command."""
    if launcher != "srun" or len(name) == 1 or name in flags or at + 1 >= len(words):
        return False
    following = PurePosixPath(bare(words[at][0])).name
    return not re.match(r"python|torchrun|bash|sh$|apptainer|singularity|uv$|.*\.(py|sh)$", following)

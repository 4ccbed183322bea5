"""A batch script for `sbatch`, as a job file."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from stoker.client.importing import directives
from stoker.client.importing.directives import Asked, Directive
from stoker.client.importing.translation import Launched, Translation, bare, experiment, shell_variables, unwrapped

_CLUSTER = "hpc"
_BASH = re.compile(
    r"\[\[|<<<|\bpipefail\b|\w\+?=\(|\$\{\w+\[|\bfunction \w|<\(|^\s*(source|shopt|declare|mapfile) ", re.M
)
_AS_SLURM = {  # variables of Slurm that have a name of their own here
    "SLURM_PROCID": "RANK",
    "SLURM_LOCALID": "LOCAL_RANK",
    "SLURM_NTASKS": "WORLD_SIZE",
    "SLURM_NPROCS": "WORLD_SIZE",
    "SLURM_JOB_ID": "STOKER_RUN",
    "SLURM_JOBID": "STOKER_RUN",
    "SLURM_RESTART_COUNT": "STOKER_ATTEMPT",
    "SLURM_ARRAY_JOB_ID": "STOKER_RUN",
    "SLURM_JOB_NAME": "STOKER_RUN",
}
_BEFORE = re.compile(r"\s*(?:(?:[A-Za-z_]\w*=[^\s'\"`$]*|time|exec)\s+)*")
_LIMITS = {"ntasks", "ntasks-per-node", "cpus-per-task", "nodes", "gpus", "gpus-per-task", "gpus-per-node"}


def translated(text: str, file: str) -> Translation:
    """Raises JobInvalid with file and line where the script itself is wrong."""
    into = Translation(file)
    if "\0" in text:
        raise into.refuse(text[: text.index("\0")].count("\n") + 1, "text", "`a NUL byte`", "a batch script")
    into.put("name", experiment(PurePosixPath(file).stem))
    asked = directives.read(text, into)
    body = shell_body(text, into)
    if not body.lines:
        raise into.refuse(
            text.count("\n") + 1, "script", "`no command`", "a command to run, such as `srun python train.py`"
        )
    launcher = _launchers(body, asked, into)
    _machines(asked, launcher, into)
    into.put("run", _command(body, asked, into))
    into.put("outputs", "outputs", "the folder of results, downloaded when the run ends: make the script write there")
    into.put("checkpoints", "checkpoints", "saved during the run, and restored before a restart")
    into.put("on", "slurm")
    _cluster(asked, into)
    return into


def _launchers(body: ShellBody, asked: Asked, into: Translation) -> str:
    """Takes them off the commands; the first one decides what starts the ranks."""
    first = ""
    for at, (line, command) in enumerate(body.lines):
        before = _BEFORE.match(command)
        start = before.end() if before else 0
        found = unwrapped(command[start:])
        if not found:
            if re.search(r"\b(srun|sbatch)\b", command):
                into.lack(line, command, "a run starts its ranks itself: remove `srun` from `run`, and set `processes`")
            continue
        _take(line, found, asked, into)
        inner = unwrapped(found.command) if found.launcher == "srun" else None
        if inner:
            _take(line, inner, asked, into)
        last = inner or found
        body.lines[at] = (line, command[:start] + last.command)
        if not first and at:
            into.lack(body.lines[0][0], body.lines[0][1], "each rank runs what is before the launcher, not one for all")
        if first and first != last.launcher:
            into.lack(line, last.launcher, f"a job has one launcher, and `{first}` is that of an earlier command")
        first = first or last.launcher
    if first in ("torchrun", "mpi"):
        into.put("launcher", first)
    return first


def _take(line: int, found: Launched, asked: Asked, into: Translation) -> None:
    for name, value in found.env.items():
        if value:
            into.env(name, value, line)
    for name, value in found.options.items():
        if found.launcher == "torchrun":
            _of_torchrun(line, name, value, asked, into)
        elif found.launcher == "mpi" and name in ("np", "n", "c"):
            _count(line, "ntasks", value, asked, into)
        elif found.launcher == "srun" and name == "container-image":
            into.put("environment", {"image": value.replace("#", "/")}, "of --container-image")
        elif found.launcher == "srun" and name in _LIMITS:
            if name not in asked.counts and not (name == "nodes" and "nodes" in into.values):
                _count(line, name, value, asked, into)
        else:
            text = f"{found.launcher} --{name}={value}" if value else f"{found.launcher} --{name}"
            into.lack(line, text, "Stoker starts the ranks itself")


def _of_torchrun(line: int, name: str, value: str, asked: Asked, into: Translation) -> None:
    if name in ("nproc-per-node", "nproc"):
        if value.isdecimal() and 0 < int(value) < 10**6:
            into.put("processes", int(value), "ranks per node")
        else:
            into.put("processes", "gpus", "one rank per GPU")
    elif name == "nnodes" and re.fullmatch(r"[1-9]\d{0,5}", value):
        _count(line, "nodes", value, asked, into)
    elif name == "max-restarts" and re.fullmatch(r"\d{1,6}", value):
        into.values.setdefault("env", {})["PET_MAX_RESTARTS"] = value
    elif name in ("no-python", "nnodes"):
        return
    else:
        text = f"torchrun --{name}={value}" if value else f"torchrun --{name}"
        into.lack(line, text, "Stoker tells torchrun how many ranks there are and where they meet")


def _count(line: int, name: str, value: str, asked: Asked, into: Translation) -> None:
    if not re.fullmatch(r"[1-9]\d{0,6}", value):
        into.lack(line, f"--{name}={value}", "its value is known only on the node: set it in the job file")
    elif name == "nodes":
        into.values.setdefault("nodes", int(value))
    elif name.startswith("gpus"):
        asked.gpus = int(value)
        asked.counts[name] = Directive(line, name, value)
    else:
        asked.counts.setdefault(name, Directive(line, name, value))


def _machines(asked: Asked, launcher: str, into: Translation) -> None:
    """What each node has, from counts of nodes, of tasks and of the whole job."""
    tasks, spread = asked.number("ntasks"), asked.number("ntasks-per-node")
    if "nodes" not in into.values and tasks and spread:
        into.put("nodes", math.ceil(tasks / spread))
    nodes = int(str(into.values.get("nodes", 1)).rpartition("..")[2])
    each = spread or math.ceil(tasks / nodes) if tasks or spread else 1
    if tasks and tasks != each * nodes:
        into.lack(asked.counts["ntasks"].line, f"{tasks} tasks on {nodes} nodes", f"each node has {each} ranks")
    if launcher in ("srun", "mpi") and each > 1:
        into.put("processes", each, "ranks per node")
    elif not launcher and each > 1:
        line = next(iter(asked.counts[name].line for name in ("ntasks-per-node", "ntasks") if name in asked.counts))
        into.lack(line, f"{each} tasks on each node", "no `srun` starts them, so one process runs, as with `sbatch`")
    if not launcher and nodes > 1:
        text = "each node runs the command as a rank; with `sbatch` only the first node runs what has no `srun`"
        into.lack(1, f"{nodes} nodes without `srun`", text)
    gpus = asked.gpus
    if "gpus" in asked.counts and asked.counts["gpus"].name == "gpus" and "gpus-per-node" not in asked.counts:
        gpus = math.ceil(gpus / nodes)
    if "gpus-per-task" in asked.counts:
        gpus = asked.gpus * each
    if gpus:
        into.put("gpus", gpus, "of each node")
    if asked.number("cpus-per-task"):
        into.put("cpus", asked.number("cpus-per-task") * each, "of each node")
    _memory(asked, gpus, each, into)
    if "ntasks-per-gpu" in asked.counts:
        one = asked.counts["ntasks-per-gpu"]
        into.lack(one.line, one.shown, "set `processes`, or `processes: gpus` for one rank per GPU")


def _memory(asked: Asked, gpus: int, each: int, into: Translation) -> None:
    factors = {"mem": 1, "mem-per-cpu": asked.number("cpus-per-task", 1) * each, "mem-per-gpu": max(gpus, 1)}
    for name, factor in factors.items():
        one = asked.counts.get(name)
        if not one:
            continue
        amount = directives.megabytes(one, into) * factor
        if not amount:
            into.lack(one.line, one.shown, "all memory of a node: set `memory` to what your nodes have")
        elif amount % 1024:
            into.put("memory", f"{amount}M", "of each node")
        else:
            into.put("memory", f"{amount // 1024}G", "of each node")


def _command(body: ShellBody, asked: Asked, into: Translation) -> str:
    """The lines that are left, for `sh`; for bash if they are written for it."""
    if folder := body.folder:
        into.put("source", folder, "of `cd`: the folder to upload, where the script runs")
    known = {"SLURM_CPUS_PER_TASK": asked.number("cpus-per-task"), "SLURM_GPUS_ON_NODE": into.values.get("gpus", 0)}
    known |= {"SLURM_GPUS_PER_NODE": into.values.get("gpus", 0), "SLURM_CPUS_ON_NODE": into.values.get("cpus", 0)}
    nodes = into.values.get("nodes", 1)
    known |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes if isinstance(nodes, int) else 0)
    lines = [_line(line, text, known, into) for line, text in body.lines]
    text = shell_variables("\n".join(lines))
    return f"bash -c {shlex.quote(text)}" if _BASH.search(text) else text


def _line(number: int, text: str, known: dict[str, int], into: Translation) -> str:
    def written(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if known.get(name):
            return str(known[name])
        if name in _AS_SLURM:
            return f"${{{_AS_SLURM[name]}}}"
        if name == "SLURM_SUBMIT_DIR":
            return "."
        if name != "SLURM_ARRAY_TASK_ID" or "matrix" not in into.values:
            into.lack(number, f"${name}", "a run has no such variable: see the variables of a run in docs/concepts")
        return found[0]

    return re.sub(r"\$(?:(SLURM_\w+)|\{(SLURM_\w+)\})", written, text)


def _cluster(asked: Asked, into: Translation) -> None:
    """Settings that only a cluster has."""
    if not asked.settings:
        return
    size = into.values.pop("size", "")
    settings = {**({"partition": size} if size else {}), **asked.settings}
    words = " ".join(f"--setting {shlex.quote(f'{name}={value}')}" for name, value in settings.items())
    into.put("on", _CLUSTER, "the cluster that the command above makes")
    into.notes.append(f"Once: stoker cluster create {_CLUSTER} --provider slurm --max {_most(into)} {words}")


def _most(into: Translation) -> int:
    return max(16, int(str(into.values.get("nodes", 1)).rpartition("..")[2]))


_MODULE = re.compile(
    r"(module|ml)\s+(?!-?-?(list|avail)\b)|(source|\.)\s+\S*(/modules?(\.sh)?|/lmod\S*|/modules/init/\S+)$"
)
_QUIET = re.compile(r"(module|ml)\s+(list|avail)|(nvidia-smi|hostname|date|pwd|env|printenv|whoami|set -x)$")
_CONDA = re.compile(r"(?:conda|mamba|micromamba|source)\s+activate\s+(\S+)$")
_CONDA_SETUP = re.compile(r"(source|\.)\s+\S*conda\S*$|eval\s+.*(conda|mamba|micromamba)\b.*(hook|init).*")
_VENV = re.compile(r"(?:source|\.)\s+(\S+)/bin/activate$")
_PROFILE = re.compile(r"(source|\.)\s+(~|\$HOME|/etc)/\S*(bashrc|profile\S*)$")
_CD = re.compile(r"cd\s+(\S+)$")
_HERE = ("$SLURM_SUBMIT_DIR", "${SLURM_SUBMIT_DIR}", ".", "$PWD", "$(pwd)")
_EXPORT = re.compile(r"export\s+([A-Za-z_]\w*)=('[^']*'|[^\s$`;&|'\"]*|\"[^$`\"\\]*\")$")
_ASSIGNS = re.compile(r"(?:export\s+|declare\s+|local\s+)?([A-Za-z_]\w*)=")
_MEETING = re.compile(r"scontrol\s+show\s+host|SLURM_(JOB_|STEP_)?NODELIST|hostname\s+(-i\b|--ip-address|-I\b)")
_RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?")
_MEETS = "Stoker tells the ranks where they meet: MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE"


@dataclass(slots=True)
class ShellBody:
    """The commands that stay, with their lines in the script, and the folder that they run in."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    folder: str = ""


def shell_body(text: str, into: Translation) -> ShellBody:
    body = ShellBody()
    gone: set[str] = set()  # variables whose assignment was left out
    for number, line in _logical(text):
        into.at = number
        if _is_left_out(number, line, gone, into) or _environment(number, line, into):
            continue
        if (found := _EXPORT.fullmatch(line)) and not body.lines:
            into.env(found[1], bare(found[2]), number)
        elif not (found := _CD.fullmatch(line)) or not _folder(number, bare(found[1]), body, into):
            body.lines.append((number, line))
    return body


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines that belong together as one: continued ones, here-documents. Comments and empty ones are left out."""
    waiting = iter(enumerate(text.split("\n"), start=1))
    for number, line in waiting:
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        whole = line.rstrip()
        while whole.endswith("\\") and not whole.endswith("\\\\"):
            following = next(waiting, None)
            whole = f"{whole[:-1].rstrip()} {following[1].strip()}" if following else whole[:-1].rstrip()
        if (document := _HEREDOC.search(whole)) and "<<<" not in whole:
            for _, more in waiting:
                whole += f"\n{more.rstrip()}"
                if more.strip() == document[1]:
                    break
        yield number, whole if line[:1].isspace() else whole.strip()


def _is_left_out(number: int, line: str, gone: set[str], into: Translation) -> bool:
    """What a run does by itself, or no run can do."""
    assigned = _ASSIGNS.match(line.strip())
    uses_gone = any(re.search(rf"\$\{{?{name}\b", line) for name in gone)
    if assigned and (assigned[1] in _RENDEZVOUS or _MEETING.search(line) or uses_gone):
        gone.add(assigned[1])
        into.lack(number, line, _MEETS)
        return True
    if _MODULE.match(line):
        text = (
            "Python packages bring their own CUDA; else begin `run` with `. /etc/profile.d/modules.sh; module load X`"
        )
        into.lack(number, line, text)
        return True
    if _QUIET.match(line) and _QUIET.fullmatch(line.split("#")[0].strip()):
        into.lack(number, line, "it only prints: `stoker show RUN` says what the node is")
        return True
    return False


def _environment(number: int, line: str, into: Translation) -> bool:
    """Lines that choose the software."""
    if found := _CONDA.fullmatch(line):
        text = (
            "submit with it active (`on: slurm` uses the Python that submits), or `conda env export > environment.yml`"
        )
        into.lack(number, line, f"{text} and `environment: environment.yml`")
    elif _CONDA_SETUP.fullmatch(line) or _PROFILE.fullmatch(line):
        into.lack(number, line, "a run uses the Python that submits, or what `environment` names")
    elif found := _VENV.fullmatch(line):
        folder = bare(found[1])
        if folder.startswith("/") and "$" not in folder:
            into.put("environment", {"python": f"{folder}/bin/python"}, "of the venv that the script activates")
        else:
            text = "submit with it active (`on: slurm` uses the Python that submits), or set `environment.python`"
            into.lack(number, line, text)
    else:
        return False
    return True


def _folder(number: int, folder: str, body: ShellBody, into: Translation) -> bool:
    """A run starts in a copy of the folder of its job file; True: no `cd` is needed."""
    if folder in _HERE:
        return True
    if body.lines or body.folder:
        return False
    if folder.startswith("/") and "$" not in folder:
        body.folder = folder
        return True
    if folder.startswith(("~", "$")):
        into.lack(number, f"cd {folder}", "a run starts in a copy of the job file's folder: put the job file there")
        return True
    return False

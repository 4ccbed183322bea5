"""The `#SBATCH` lines of a batch script, as fields of a job file and settings of a cluster."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from stoker.client.importing.translation import Translation, experiment
from stoker.model.job.fields import nearest

SHORT = {
    "J": "job-name",
    "p": "partition",
    "A": "account",
    "t": "time",
    "N": "nodes",
    "n": "ntasks",
    "q": "qos",
    "c": "cpus-per-task",
    "o": "output",
    "e": "error",
    "G": "gpus",
    "C": "constraint",
    "a": "array",
    "i": "input",
    "d": "dependency",
    "w": "nodelist",
    "x": "exclude",
    "D": "chdir",
    "L": "licenses",
    "b": "begin",
    "M": "clusters",
    "k": "no-kill",
    "s": "oversubscribe",
    "H": "hold",
    "F": "nodefile",
    "m": "distribution",
    "W": "wait",
    "Q": "quiet",
    "v": "verbose",
    "O": "overcommit",
    "S": "core-spec",
    "B": "extra-node-info",
}
FLAGS = {"requeue", "no-requeue", "exclusive", "overcommit", "hold", "wait", "quiet", "verbose", "parsable", "no-kill"}
FLAGS |= {
    "contiguous",
    "spread-job",
    "use-min-nodes",
    "reboot",
    "ignore-pbs",
    "oversubscribe",
    "disable-stdout-job-summary",
}
_LOGS = "output is kept by itself: `stoker logs RUN`"
_RESUMES = "Stoker resumes an evicted run by itself, and Slurm never requeues its jobs"
_MAIL = "Stoker sends no mail: `stoker ps` and `stoker logs -f RUN` show how it goes"
_SAVES = "Stoker asks for a notice itself, and the script saves as on an eviction (docs/guides/survive-eviction.md)"
_CHOICE = "Stoker leaves the choice to Slurm; use a `constraint` of a cluster"
INSTEAD = {  # what no field stands for
    **dict.fromkeys(("output", "error", "open-mode"), _LOGS),
    **dict.fromkeys(("requeue", "no-requeue"), _RESUMES),
    **dict.fromkeys(("mail-type", "mail-user"), _MAIL),
    "signal": _SAVES,
    **dict.fromkeys(("nodelist", "exclude", "distribution", "contiguous", "spread-job", "switches"), _CHOICE),
    "dependency": "start it when the other run has ended: `stoker run` waits for a run's end",
    "begin": "start `stoker run` at that time, for instance with `at`",
    "input": "redirect it in `run`: `python train.py < FILE`",
    "exclusive": "ask for all of a node's `cpus` and `gpus`",
    "get-user-env": "set variables in `env`",
    "wait": "`stoker run` waits anyway",
    "nice": "use `priority: low`",
    "priority": "use `priority: high` or `low`, which orders runs of Stoker",
    "time-min": "a run continues in the next allocation, so a short `--setting time=…` of a cluster is enough",
}
_OF_CLUSTER = ("account", "qos", "constraint", "reservation")
_COUNTS = ("ntasks", "ntasks-per-node", "cpus-per-task", "gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-gpu")
_CLOCK = re.compile(r"(?:(\d{1,6})-(\d{1,6})(?::(\d{1,6}))?(?::(\d{1,6}))?)|(\d{1,9})(?::(\d{1,6}))?(?::(\d{1,6}))?")
_MEMORY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMGT]?)B?", re.IGNORECASE)
_GPU = re.compile(r"(?:gres/)?gpu(?::([A-Za-z][\w.-]*))?(?:[:=](\d{1,4}))?(?:\(.*\))?")


@dataclass(frozen=True, slots=True)
class Directive:
    line: int
    name: str
    value: str

    @property
    def shown(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


@dataclass(slots=True)
class Asked:
    """What counts depend on each other: they become fields when the commands are known, too."""

    counts: dict[str, Directive] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # of a cluster
    gpus: int = 0  # of each node

    def number(self, name: str, default: int = 0) -> int:
        one = self.counts.get(name)
        found = re.search(r"\d+$", one.value) if one else None
        return int(found[0]) if found else default


def directives(text: str, into: Translation) -> Iterator[Directive]:
    """Until the first command, where Slurm stops to read them."""
    started = False
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith("#SBATCH"):
            started |= bool(line.strip()) and not line.lstrip().startswith("#")
        elif started:
            into.lack(number, line, "Slurm ignores it as well: it is behind the first command")
        else:
            yield from _of_line(number, line.removeprefix("#SBATCH"), into)


def _of_line(number: int, rest: str, into: Translation) -> Iterator[Directive]:
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        raise into.refuse(number, "#SBATCH", rest.strip(), "options whose quotes are closed") from None
    waiting = iter(words)
    for word in waiting:
        if word in ("hetjob", "packjob"):
            raise into.refuse(
                number, "#SBATCH", word, "a job whose nodes are all alike: split it into several job files"
            )
        if not word.startswith("-") or word in ("-", "--"):
            raise into.refuse(number, "#SBATCH", word, "an option such as `--nodes=2`")
        name, equals, value = word[2:].partition("=") if word.startswith("--") else (word[1], "", word[2:])
        name = name if word.startswith("--") else SHORT.get(name, name)
        given = bool(equals) or bool(value)
        if not given and name not in FLAGS:
            value = next(waiting, "")
            if not value:
                raise into.refuse(number, f"--{name}", "`nothing`", "a value")
        yield Directive(number, name, value)


def read(text: str, into: Translation) -> Asked:
    asked = Asked()
    for one in directives(text, into):
        into.at = one.line
        if one.name in _COUNTS:
            if one.name.startswith("gpus"):
                _gpus(one, asked, into)
            elif not re.fullmatch(r"[1-9]\d{0,6}", one.value):
                raise into.refuse(one.line, f"--{one.name}", one.value, "a whole number, 1 or more")
            asked.counts[one.name] = one
        elif one.name in ("mem", "mem-per-cpu", "mem-per-gpu"):
            megabytes(one, into)
            asked.counts[one.name] = one
        elif one.name in _OF_CLUSTER:
            asked.settings[one.name] = one.value
        elif reader := _READERS.get(one.name):
            reader(one, asked, into)
        else:
            into.lack(one.line, one.shown, INSTEAD.get(one.name) or _unknown(one.name))
    return asked


def _unknown(name: str) -> str:
    known = {*SHORT.values(), *INSTEAD, *_READERS, *_OF_CLUSTER, *_COUNTS, *FLAGS}
    near = "" if name in known else nearest(name, known)
    return f"did you mean `--{near}`?" if near else "nothing in a job file stands for it"


def _name(one: Directive, _asked: Asked, into: Translation) -> None:
    into.put("name", experiment(one.value))


def _partition(one: Directive, _asked: Asked, into: Translation) -> None:
    first, *others = one.value.split(",")
    into.put("size", first, "the partition")
    if others:
        into.lack(one.line, one.shown, f"a job names one partition: `size: {first}`")


def _nodes(one: Directive, _asked: Asked, into: Translation) -> None:
    found = re.fullmatch(r"([1-9]\d{0,6})(?:-([1-9]\d{0,6}))?", one.value)
    if not found or (found[2] and int(found[2]) < int(found[1])):
        raise into.refuse(one.line, "--nodes", one.value, "a whole number, or a range such as `2-4`")
    into.put("nodes", f"{found[1]}..{found[2]}" if found[2] and found[2] != found[1] else int(found[1]))


def _time(one: Directive, _asked: Asked, into: Translation) -> None:
    if one.value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return into.lack(one.line, one.shown, "without `time_limit`, a run has none")
    found = _CLOCK.fullmatch(one.value)
    if not found:
        raise into.refuse(one.line, "--time", one.value, "a time such as `90`, `4:00:00` or `1-12:00:00`")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:4])
    if not found[1]:
        parts = [int(part) for part in found.groups()[4:] if part is not None]
        hours, minutes, seconds = (0, *parts, 0)[:3] if len(parts) < 3 else parts
    total = days * 86400 + hours * 3600 + minutes * 60 + seconds
    if not total:
        raise into.refuse(one.line, "--time", one.value, "a time above zero")
    into.put("time_limit", spelled(total), "the longest an attempt may run")
    return None


def spelled(seconds: int) -> str:
    """`1d12h`, as a job file has it."""
    parts = ((seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return "".join(f"{count}{unit}" for count, unit in parts if count)


def _array(one: Directive, _asked: Asked, into: Translation) -> None:
    listed, percent, most = one.value.partition("%")
    values: list[range] = []
    for part in listed.split(","):
        found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", part)
        if (
            not found
            or (percent and not re.fullmatch(r"[1-9]\d{0,6}", most))
            or int(found[2] or found[1]) < int(found[1])
        ):
            raise into.refuse(one.line, "--array", one.value, "numbers such as `0-9`, `1,3,5` or `0-15:4%2`")
        values.append(range(int(found[1]), int(found[2] or found[1]) + 1, int(found[3] or 1)))
    if sum(len(part) for part in values) > 100_000:
        raise into.refuse(one.line, "--array", one.value, "at most 100,000 tasks")
    first = values[0]
    step = f"..{first.step}" if first.step > 1 else ""
    single = len(values) == 1 and len(first) > 1
    tasks = f"{first[0]}..{first[-1]}{step}" if single else [number for part in values for number in part]
    into.put("matrix", {"task": tasks}, "of --array: a trial for each task")
    into.values.setdefault("env", {})["SLURM_ARRAY_TASK_ID"] = "${matrix.task}"
    if percent:
        into.put("max_parallel", int(most), "how many trials run at the same time")


def _gres(one: Directive, asked: Asked, into: Translation) -> None:
    others = []
    for part in one.value.split(","):
        if re.match(r"(gres/)?gpu(:|=|$)", part):
            _gpus(Directive(one.line, one.name, part), asked, into)
            asked.counts["gpus-per-node"] = Directive(one.line, one.name, str(asked.gpus))
        elif part.lower() != "none":
            others.append(part)
    if others:
        asked.settings["gres"] = ",".join(others)


def _gpus(one: Directive, asked: Asked, into: Translation) -> None:
    """`4`, `a100:4`, `gpu:a100:4`; how many for each node is known when all lines are read."""
    text = one.value if one.value.startswith(("gpu", "gres/gpu")) else f"gpu:{one.value}"
    found = _GPU.fullmatch(text)
    if not found:
        raise into.refuse(one.line, f"--{one.name}", one.value, "GPUs such as `4`, `a100:4` or `gpu:a100:4`")
    asked.gpus = int(found[2] or 1)
    if found[1]:
        into.put("gpu", found[1])


def _export(one: Directive, _asked: Asked, into: Translation) -> None:
    for part in one.value.split(","):
        name, equals, value = part.partition("=")
        if name in ("ALL", "NIL", "NONE", ""):
            text = (
                "a run gets only what the job file names: list variables in `env`, or pass `--env NAME` to `stoker run`"
            )
            into.lack(one.line, f"--export={name}", text)
        elif not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise into.refuse(one.line, "--export", part, "variables such as `NAME=value`")
        elif equals:
            into.env(name, value, one.line)
        else:
            into.lack(one.line, f"--export={name}", f"pass your shell's value: `stoker run --env {name}`")


def _chdir(one: Directive, _asked: Asked, into: Translation) -> None:
    into.put("source", one.value, "of --chdir: the folder to upload, where the script runs")


_READERS: dict[str, Callable[[Directive, Asked, Translation], None]] = {
    "job-name": _name,
    "partition": _partition,
    "nodes": _nodes,
    "time": _time,
    "array": _array,
    "gres": _gres,
    "export": _export,
    "chdir": _chdir,
}


def megabytes(one: Directive, into: Translation) -> int:
    """Without a unit, Slurm means megabytes of 1024."""
    found = _MEMORY.fullmatch(one.value)
    if not found:
        raise into.refuse(one.line, f"--{one.name}", one.value, "memory such as `64G`")
    amount = float(found[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[found[2].upper()]
    return math.ceil(amount)

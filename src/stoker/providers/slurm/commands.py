"""Slurm's commands as lists of words, the batch script as text, what an allocation is asked for with, and what the
commands print as data. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.errors import JobInvalid, Problem
from stoker.model.job.fields import nearest
from stoker.model.node import Need

WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
THERE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
TAKEN = frozenset({"PREEMPTED", "TIMEOUT"})  # as Slurm means it to be: the run only goes on in another allocation
_MEANING = {
    "PREEMPTED": "a job of higher priority preempted it",
    "TIMEOUT": "it reached its time limit",
    "CANCELLED": "somebody cancelled it with scancel",
    "NODE_FAIL": "one of its nodes failed",
    "OUT_OF_MEMORY": "it used more memory than it was allocated",
    "BOOT_FAIL": "its node did not boot",
    "DEADLINE": "it reached its deadline",
    "REVOKED": "another cluster of the federation took it",
    "COMPLETED": "its agent ended without a report",
}
_OURS = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")  # how a user reaches the cluster
_OTHERS = ("SLURM_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", "SACCT_", "SBATCH_ARRAY_INX", "SBATCH_WAIT")
_COLUMNS = "%A|%T|%r|%j"
GIVEN = "given"  # the file with the variables of the run, secrets among them


@dataclass(frozen=True, slots=True)
class SlurmJob:
    id: str
    state: str
    reason: str  # why it waits, or ended
    name: str


@dataclass(frozen=True, slots=True)
class Partition:
    name: str
    limit_s: float  # of a job that says nothing; 0: none
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class AllocatedNode:
    """One node of an allocation. `settings` are the names of variables that hold its own; its agent gets their values
    under the plain names."""

    key: str
    agent: tuple[str, ...]  # the command of its agent
    settings: Mapping[str, str]  # plain name to the name in the environment of the batch script


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Without what would filter a list, multiply a job, or tell it of another allocation, such as the one of an
    interactive job in which the server was started."""
    return {name: value for name, value in given.items() if name in _OURS or not name.startswith(_OTHERS)}


def exports(variables: Mapping[str, str]) -> str:
    """A file for the batch script: what is in the environment of `sbatch` may be kept in Slurm's accounts for good."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))


def squeue(user: str) -> list[str]:
    """One request, whatever the number of jobs. `--all`: also of partitions that are hidden."""
    return ["squeue", "--all", "--noheader", "--states=all", f"--user={user}", f"--format={_COLUMNS}"]


def named(user: str, name: str) -> list[str]:
    return [*squeue(user), f"--name={name}"]


def jobs(printed: str) -> list[SlurmJob]:
    """A name is last, because it may contain anything."""
    rows = (line.split("|", 3) for line in printed.splitlines())
    return [SlurmJob(*(one.strip() for one in row)) for row in rows if len(row) == 4 and row[0].strip().isdigit()]


def show(id: str) -> list[str]:
    return ["scontrol", "show", "job", id, "--oneliner"]


def shown(printed: str) -> SlurmJob | None:
    """The job that `scontrol show job` prints; None: it prints none."""
    found = {name: value for name, _, value in (word.partition("=") for word in printed.split())}
    if not {"JobId", "JobState"} <= set(found):
        return None
    return SlurmJob(found["JobId"], found["JobState"], found.get("Reason", ""), found.get("JobName", ""))


def actual(found: Sequence[SlurmJob], id: str, claim: str) -> SlurmJob | None:
    """Which of the jobs of one name it is: a controller that was killed while it answered may have two. `claim` is the
    id of the one that works, `id` of the one that was submitted; empty: unknown."""
    there = [job for job in found if not is_over(job)]
    first = [job for job in found if claim and job.id == claim]
    return next(iter([*first, *(job for job in (*there, *found) if job.id == id), *there, *found]), None)


def is_over(job: SlurmJob) -> bool:
    return job.state not in (*WAITING, *THERE)


def steps(id: str) -> list[str]:
    return ["squeue", "--steps", "--noheader", f"--jobs={id}", "--format=%i|%j"]


def step_named(printed: str, name: str) -> str:
    """The id of a step; empty: there is none."""
    rows = (line.strip().partition("|") for line in printed.splitlines())
    return next((id for id, _, found in rows if found == name), "")


def cancel(id: str) -> list[list[str]]:
    """At once, the agents and the batch script; what still waits has no process to be killed."""
    return [["scancel", "--signal=KILL", "--full", id], ["scancel", id]]


def cancel_step(id: str) -> list[str]:
    return ["scancel", "--signal=KILL", id]


def sbatch(name: str, folder: str, nodes: int, asked: Wanted, lead_s: int, comment: str) -> list[str]:
    return [
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        f"--comment={comment}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        "--no-requeue",
        f"--signal=B:USR1@{lead_s}",
        "--export=ALL",
        f"--chdir={folder}",
        f"--output={folder}/slurm.out",
        "--input=/dev/null",
        "--open-mode=append",
        *asked.options(),
    ]


def submitted(printed: str) -> str:
    """The id that `sbatch --parsable` prints, with `;CLUSTER` behind it in a federation; empty: none."""
    found = re.search(r"^(\d+)(?:;.*)?$", printed, re.MULTILINE)
    return found[1] if found else ""


def script(folder: str, nodes: Sequence[AllocatedNode]) -> str:
    """The first allocation that starts claims the folder. A later one, one that an administrator has requeued, or one
    whose run was cancelled, ends at once.

    Signals of Slurm reach the agents by themselves; the notice of the time limit comes to this script alone, because
    some clusters signal every process of a step and so would kill the user's script.
    """
    own = sorted({given for node in nodes for given in node.settings.values()})
    lines = [
        "#!/bin/sh",
        f"cd {shlex.quote(folder)} 2>/dev/null || exit 0",
        '(set -C; echo "$SLURM_JOB_ID" > claim) 2>/dev/null || { [ -s claim ] && exit 0; exit 1; }',
        f"if [ -e {GIVEN} ]; then . ./{GIVEN}; rm -f {GIVEN}; fi",
        "trap ': > notice' USR1",
        "trap : TERM CONT",
        *(_step(number, node, own) for number, node in enumerate(nodes)),
        "while :; do wait; [ $? -gt 128 ] || break; done",
    ]
    return "\n".join(lines) + "\n"


def _step(number: int, node: AllocatedNode, own: Sequence[str]) -> str:
    """A step for each node: one that is lost or stopped ends alone, and the engine decides about the others."""
    given = "".join(f'export {name}="${variable}"; ' for name, variable in sorted(node.settings.items()))
    hidden = f"unset {' '.join(own)}; " if own else ""
    words = [
        "srun",
        "--nodes=1",
        "--ntasks=1",
        f"--relative={number}",
        "--kill-on-bad-exit=1",
        "--input=none",
        f"--job-name={node.key}",
        f"--output=srun-{number}.out",
    ]
    cpus = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
    # The agent ends all processes that have this variable, and srun must outlive it.
    agent = ["env", f"STOKER_NODE_KEY={node.key}", *node.agent]
    step = f"[ -e stopped.{number} ] || {shlex.join(words)} {cpus} {shlex.join(agent)}"
    return f"( {given}{hidden}{step}; : > ended.{number} ) &"


def ended(job: SlurmJob) -> str:
    """How it ended, in Slurm's own words."""
    state = job.state.partition(" ")[0]
    why = f" ({job.reason})" if job.reason not in ("", "None", state, state.title()) else ""
    meaning = f": {_MEANING[state]}" if state in _MEANING else ""
    return f"Slurm job {job.id} ended as {job.state}{why}{meaning}"


def requeued(job: SlurmJob) -> str:
    return f"Slurm job {job.id} was requeued by an administrator, and is cancelled"


PARTITIONS = ("sinfo", "--all", "--noheader", "--format=%P|%L|%l")


def partitions(printed: str) -> list[Partition]:
    """A job without a time gets the default one of its partition, or the longest."""
    rows = [line.strip().split("|") for line in printed.splitlines() if line.count("|") == 2]
    return [
        Partition(name.rstrip("*"), limit(default) or limit(longest), is_default=name.endswith("*"))
        for name, default, longest in rows
    ]


def accounting(id: str) -> list[str]:
    return [
        "sacct",
        "--allocations",
        "--noheader",
        "--parsable2",
        f"--jobs={id}",
        "--format=JobIDRaw,State,Reason,JobName",
    ]


def kill_wait(printed: str) -> float:
    """Seconds from SIGTERM to SIGKILL, as `scontrol show config` prints them; Slurm's default where it does not."""
    found = re.search(r"^KillWait\s*=\s*(\d+)", printed, re.MULTILINE)
    return float(found[1]) if found else 30.0


SETTINGS = ("partition", "account", "qos", "constraint", "gres", "time", "reservation")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:|&*()\[\]/=@%+-]{1,200}")  # neither an option of its own nor words of a shell
_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")
_SPELLED = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
LEAD_S = 120  # of the notice before the end of the time limit
MOST_LEAD = 4  # a short limit gives a quarter of itself


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of each allocation. Empty or zero: Slurm's own default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gres: str = ""
    reservation: str = ""
    time_s: float = 0.0
    cpus: int = 0  # of each node
    memory_mb: int = 0

    def options(self) -> list[str]:
        named = ("partition", "account", "qos", "constraint", "gres", "reservation")
        found = [f"--{name}={getattr(self, name)}" for name in named if getattr(self, name)]
        found += [f"--time={math.ceil(self.time_s / 60)}"] if self.time_s else []
        found += [f"--cpus-per-task={self.cpus}"] if self.cpus else []
        found += [f"--mem={self.memory_mb}M"] if self.memory_mb else []
        return found


def wanted(need: Need) -> Wanted:
    """Raises JobInvalid with the setting that cannot be used."""
    given = dict(need.pool.settings) if need.pool else {}
    one = _of_settings(given)
    if need.gpus:
        model = f":{need.gpu.lower()}" if need.gpu else ""
        gres = [part for part in one.gres.split(",") if part and not part.startswith("gpu")]
        one = replace(one, gres=",".join([f"gpu{model}:{need.gpus}", *gres]))
    if need.size:
        one = replace(one, partition=_plain("size", need.size))
    return replace(one, cpus=need.cpus, memory_mb=math.ceil(need.memory_gb * 1000))


def _of_settings(given: Mapping[str, str]) -> Wanted:
    for name in given:
        if name not in SETTINGS:
            expected = "a setting of Slurm: " + ", ".join(f"`{one}`" for one in SETTINGS)
            raise JobInvalid([Problem(f"setting {name}", f"`{given[name]}`", expected, nearest(name, SETTINGS))])
    time_s = seconds(given["time"]) if "time" in given else 0.0
    named: dict[str, Any] = {name: _plain(name, value) for name, value in given.items() if name != "time"}
    return replace(Wanted(time_s=time_s), **named)


def _plain(name: str, value: str) -> str:
    if not _PLAIN.fullmatch(value) or value.startswith("-"):
        raise JobInvalid([Problem(name, f"`{value}`", f"a {name} as in `sbatch --{name}=…`")])
    return value


def seconds(text: str) -> float:
    """Of `4h`, `90m`, or as Slurm spells it: `90`, `90:00`, `4:00:00`, `1-12`, `1-12:00:00`. Raises JobInvalid."""
    if not (found := _seconds(text)):
        raise JobInvalid([Problem("setting time", f"`{text}`", "a time such as `4h`, or as `sbatch --time` takes it")])
    return float(found)


def limit(printed: str) -> float:
    """Of a partition, as `sinfo` prints it; 0: none."""
    return float(_seconds(printed))


def _seconds(text: str) -> int:
    """0 if the text is not a time."""
    if (spelled := _SPELLED.fullmatch(text)) and any(spelled.groups()):
        return sum(int(part or 0) * unit for part, unit in zip(spelled.groups(), (86400, 3600, 60, 1), strict=True))
    if clock := _CLOCK.fullmatch(text):
        return _of_clock(int(clock["days"] or 0), [int(one) for one in clock["parts"].split(":")], bool(clock["days"]))
    return 0


def _of_clock(days: int, parts: list[int], of_day: bool) -> int:
    """Behind days, Slurm begins with hours; without them, one or two numbers are minutes and seconds."""
    units = (3600, 60, 1) if of_day or len(parts) == 3 else (60, 1)
    return days * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def lead_s(limit_s: float) -> int:
    """Seconds of notice before a time limit; 0 without a limit: then no notice comes."""
    return max(int(min(LEAD_S, limit_s / MOST_LEAD)), 1) if limit_s else LEAD_S

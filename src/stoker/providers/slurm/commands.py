"""Slurm's commands as lists of words, the batch script as text, and what the commands print as data. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stoker.providers.slurm import wanted
from stoker.providers.slurm.wanted import Wanted

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
        Partition(name.rstrip("*"), wanted.limit(default) or wanted.limit(longest), is_default=name.endswith("*"))
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

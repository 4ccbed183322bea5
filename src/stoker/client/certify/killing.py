"""Which ranks and nodes of a distributed run are killed during its certification, and how: on this computer only."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stoker.client.api.handle import RunHandle
from stoker.client.api.reach import VisitHandle
from stoker.client.certify.evidence import Moment, Victim
from stoker.model.job.job import Job


@dataclass(frozen=True, slots=True)
class CertifiedWorld:
    nodes: int
    processes: int  # of each node

    @classmethod
    def of(cls, job: Job) -> CertifiedWorld:
        return cls(job.most_nodes, job.processes if isinstance(job.processes, int) else 1)


def with_victims(
    runs: Sequence[tuple[Moment, ...]], world: CertifiedWorld, chance: random.Random
) -> list[tuple[Moment, ...]]:
    """Evictions without notice hit one rank or one node, in turns; those with notice hit all nodes, as a drill does."""
    if world.nodes * world.processes == 1:
        return list(runs)
    found, killed = [], chance.randrange(2)
    for moments in runs:
        chosen = []
        for moment in moments:
            if not moment.notice_s:
                moment = replace(moment, victim=_victim(world, chance, node=bool(killed % 2)))
                killed += 1
            chosen.append(moment)
        found.append(tuple(chosen))
    return found


def _victim(world: CertifiedWorld, chance: random.Random, *, node: bool) -> Victim:
    if node and world.nodes > 1:
        return Victim(chance.randrange(world.nodes))
    rank = chance.randrange(world.nodes * world.processes)
    return Victim(rank // world.processes, rank)


# Run on the node, with the number of a rank or `agent`. Every process of a rank has its number in its environment.
_KILL = """
import json, os, pathlib, signal, sys
own = f"STOKER_NODE_KEY={os.environ['STOKER_NODE_KEY']}".encode()
if sys.argv[1] == "agent":
    errand = next(one / "errand.json" for one in pathlib.Path.cwd().parents if (one / "errand.json").exists())
    os.kill(json.loads(errand.read_bytes())["agent"], signal.SIGKILL)
for one in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        found = (one / "environ").read_bytes().split(b"\\0")
        if own in found and f"RANK={sys.argv[1]}".encode() in found:
            os.kill(int(one.name), signal.SIGKILL)
    except OSError:
        pass
"""


def kill(run: RunHandle, victim: Victim) -> VisitHandle:
    """Neither the script nor its agent can do anything before. Raises Conflict where the run has ended. Hold what
    is returned until the attempt has ended: the command ends with it."""
    whom = "agent" if victim.rank is None else str(victim.rank)
    return run.exec(sys.executable, "-I", "-S", "-c", _KILL, whom, node=victim.node)

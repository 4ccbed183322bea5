"""One run on many nodes: how soon its ranks have met, what a lost node costs, and that nothing is left of 32 agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path

from benchmarks.azure import commit, settings, twin_cloud, until
from benchmarks.commands import CommandFailed, clean_environment, workplace
from benchmarks.gangpeers import slurm_lost, torchrun_lost
from benchmarks.gangscripts import COUNT, MEET, TRAIN, counted
from benchmarks.measure import Goal, Plan, Result, over
from stoker.client.api.client import Client
from stoker.client.api.handle import RunHandle
from stoker.client.local import launch
from stoker.model.job.job import Environment, Job, Packages
from stoker.model.node import Cluster

PYTHON = sys.executable
MEETING, TRAINING, WIDE = 8, 4, 32
STEPS, PAUSE_S, HIT_AT = 40, 0.2, 8
LIMIT_S = 600.0
Peer = Callable[[Path, str, int], float]
HERE = Environment(python=PYTHON, packages=Packages.NONE)


def run(plan: Plan) -> Result:
    """Not from an installation of its own: every contestant needs torch."""
    result = Result("gang", versions={"stoker": commit(), "torch": version("torch")})
    with workplace() as place, _desk(place) as desk:
        ours, theirs = f"{MEETING} nodes of `local`", f"torchrun with {MEETING} processes, by hand"
        met = plan.interleave({ours: desk.meet, theirs: desk.meet_by_hand}, warm_up=1)
        for name, samples in met.items():
            result.add(f"{name}: command to `init_process_group` done", "s", samples)
        result.add("Stoker over torchrun", "s", over(met[ours], met[theirs]), Goal(at_most=1.5))
        lines = plan.interleave({"warm": partial(desk.first_line, "bench"), "local": partial(desk.first_line, "local")})
        result.add("submit to first line: `local`", "s", lines["local"])
        result.add("submit to first line: a node of a cluster that is warm", "s", lines["warm"])
        result.add("warm over `local`", "s", over(lines["warm"], lines["local"]), Goal(at_most=0.3))
        lost = [desk.lost() for _ in range(plan.size(3, 1))]
        result.add(f"one of {TRAINING} nodes killed to the next step, imports included", "s", lost)
        if not plan.alone:
            for name, peer in (("torchrun's elastic agents", torchrun_lost), ("Slurm's requeue", slurm_lost)):
                _add_elsewhere(result, name, place, peer, plan.size(3, 1))
        wide = [desk.wide() for _ in range(plan.size(3, 1))]
        result.add(f"{WIDE} agents: submit to the first step", "s", [one["first"] for one in wide])
        result.add(f"{WIDE} agents: one killed to the next step", "s", [one["next"] for one in wide])
        result.add(f"{WIDE} agents: processes left at the end", "", [one["left"] for one in wide], Goal(at_most=0))
    with workplace() as place, twin_cloud(place) as cloud:
        for kind, notice_s in (("with 30 s of notice", 30.0), ("without notice", 0.0)):
            rounds = [cloud.gang_lost(notice_s) for _ in range(plan.size(3, 1))]
            name = f"one of {TRAINING} nodes of the twin evicted {kind}"
            result.add(f"{name}: to the replacement asked for", "s", [one["asked"] for one in rounds], Goal(at_most=2))
            result.add(f"{name}: all ready to the next step", "s", [one["step"] for one in rounds], Goal(at_most=3))
            goal = Goal(at_most=0) if notice_s else None
            result.add(f"{name}: steps done twice", "", [one["redone"] for one in rounds], goal)
    return result


class Desk:
    def __init__(self, client: Client, folder: Path) -> None:
        self._client, self._folder = client, folder
        for name, text in {
            "meet.py": MEET,
            "train.py": TRAIN,
            "count.py": COUNT,
            "hello.py": "print('hello')\n",
        }.items():
            (folder / name).write_text(text, encoding="utf-8")
        client.clusters.create(Cluster(name="bench", provider="local", max_nodes=1))

    def meet(self) -> float:
        found = self._folder.parent / "met"
        found.unlink(missing_ok=True)
        begun = time.time()
        self._submit(f"{PYTHON} meet.py {found}", nodes=MEETING).wait(LIMIT_S)
        return float(found.read_text()) - begun

    def meet_by_hand(self) -> float:
        found = self._folder.parent / "met-by-hand"
        found.unlink(missing_ok=True)
        begun = time.time()
        words = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(MEETING)]
        if code := self._by_hand([*words, "meet.py", str(found)]).wait(LIMIT_S):
            raise CommandFailed(f"torchrun ended with {code}")
        return float(found.read_text()) - begun

    def first_line(self, on: str) -> float:
        begun = time.monotonic()
        run = self._client.submit(Job(name="line", run=f"{PYTHON} hello.py", on=on, environment=HERE), self._folder)
        next(iter(run.logs(follow=True)))
        took_s = time.monotonic() - begun
        run.wait(LIMIT_S)
        return took_s

    def lost(self) -> float:
        """An agent is killed, which is what a lost node is on this computer."""
        run = self._submit(f"{PYTHON} train.py {STEPS} {PAUSE_S}", nodes=TRAINING)
        until(lambda: _steps(run, 1) >= HIT_AT)
        begun = time.time()
        self._kill(run, node=TRAINING - 1)
        until(lambda: _steps(run, 2) > 0)
        took_s = next(one.at.timestamp() for one in run.metrics() if one.attempt == 2) - begun
        run.wait(LIMIT_S)
        return took_s

    def wide(self) -> Mapping[str, float]:
        begun, steps = time.time(), 40
        run = self._submit(f"{PYTHON} count.py {steps}", nodes=WIDE)
        until(lambda: _steps(run, 1) >= HIT_AT)
        first = run.metrics()[0].at.timestamp() - begun
        killed = time.time()
        self._kill(run, node=WIDE // 2)
        run.wait(LIMIT_S)
        again = next(one.at.timestamp() for one in run.metrics() if one.attempt > 1)
        if run.refresh().facts.state != "succeeded" or run.metrics()[-1].values["value"] != counted(steps, WIDE):
            raise CommandFailed(f"the run with {WIDE} nodes {run.facts.state}: {run.facts.reason}")
        time.sleep(1.0)  # to leave
        mark = f"STOKER_NODE_KEY={run.facts.id}".encode()
        return {"first": first, "next": again - killed, "left": float(len(_marked(mark)))}

    def _submit(self, command: str, nodes: int) -> RunHandle:
        env = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        job = Job(name="gang", run=command, nodes=nodes, environment=HERE, env=env)
        return self._client.submit(job, self._folder)

    def _by_hand(self, words: list[str]) -> subprocess.Popen[bytes]:
        env = clean_environment({"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PATH": os.environ["PATH"]})
        quiet = subprocess.DEVNULL
        return subprocess.Popen(words, cwd=self._folder, env=env, stdout=quiet, stderr=quiet)

    def _kill(self, run: RunHandle, node: int) -> None:
        errand = self._client.settings.home.root / "nodes" / _keys(run)[node] / "errand.json"
        os.kill(int(json.loads(errand.read_bytes())["agent"]), signal.SIGKILL)


def _add_elsewhere(result: Result, name: str, place: Path, peer: Peer, rounds: int) -> None:
    """A peer that does not resume at all is a note, not the end of the benchmark."""
    try:
        result.add(f"the same with {name}", "s", [_elsewhere(place, peer) for _ in range(rounds)])
    except CommandFailed as error:
        result.notes.append(f"{name}: {error}")


def _elsewhere(place: Path, peer: Peer) -> float:
    folder = Path(tempfile.mkdtemp(dir=place))
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    return peer(folder, f"train.py {100 * STEPS} {PAUSE_S}", HIT_AT)


@contextmanager
def _desk(place: Path) -> Iterator[Desk]:
    mine = settings(place)
    folder = place / "project"
    folder.mkdir()
    try:
        yield Desk(Client.connect(mine), folder)
    finally:
        launch.stop(mine)


def _steps(run: RunHandle, attempt: int) -> int:
    return sum(one.attempt == attempt for one in run.metrics())


def _keys(run: RunHandle) -> list[str]:
    attempt = run.refresh().facts.attempts[-1]
    return [one.key for one in attempt.members]


def _marked(mark: bytes) -> list[int]:
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            found += [int(one.name)] if mark in (one / "environ").read_bytes() else []
        except OSError:
            continue
    return found

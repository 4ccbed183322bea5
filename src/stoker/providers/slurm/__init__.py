"""Nodes of a Slurm cluster: an allocation for each attempt, inside which an agent runs on each of its nodes. Slurm owns
the nodes and the queue."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from urllib.parse import unquote, urlsplit

from stoker.errors import JobInvalid, Problem, ProviderFailed, ProviderUnavailable, StokerError
from stoker.model.job.fields import nearest
from stoker.model.node import Features, Need, NodeRequest, NodeSight, NodeState, Offer
from stoker.providers import Setup, surroundings
from stoker.providers.allocations import Allocation, Allocations, GangGathering
from stoker.providers.slurm import commands
from stoker.providers.slurm.commands import LEAD_S, AllocatedNode, Partition, SlurmJob, Wanted, lead_s, wanted
from stoker.providers.slurm.controller import INSTALL, SlurmController, is_installed
from stoker.providers.slurm.place import NODE, LoginNode, SlurmPlace, ThisComputer
from stoker.stores.access import Access

LOGIN = "STOKER_SLURM_LOGIN"  # the login node, as `ssh` takes it; unset: this computer
_OVER_S = 20.0  # for an allocation that was cancelled to be over
_OWN = ("STOKER_ACCESS", "STOKER_SEAL")  # of each node alone; the other variables are those of the run


class SlurmProvider:
    # Slurm looks twice a minute for what is over, and kills it KillWait later: only then does it say how it ended.
    features: Features = Features(
        notice_s=float(LEAD_S),
        overstay_s=90.0,
        containers=True,
        shares_files=True,
        elsewhere=True,
        own_queue=True,
        look_every_s=2.0,
        patience_s=300.0,
    )

    def __init__(self, setup: Setup) -> None:
        self._login = surroundings({}).get(LOGIN, "").strip()
        if self._login:
            self.features = replace(self.features, shares_files=False, carries_folders=True)
        self._mark = (setup.server or hashlib.sha256(str(setup.home.root).encode()).hexdigest())[:12]
        self._place: SlurmPlace = (
            LoginNode(self._login, setup.home, self._mark) if self._login else ThisComputer(setup.home)
        )
        self._records = Allocations(setup.home.root / "slurm" / "records")
        self._controller = SlurmController(self._place)
        self._gathering = GangGathering(self._records)

    def offers(self, need: Need) -> list[Offer]:
        if not self._login and not is_installed():
            return [Offer("slurm", "node", "no cluster", Decimal(0), unready=INSTALL)]
        asked = wanted(need)
        if need.region or need.spot:
            return []
        known = self._controller.partitions()
        if asked.partition and asked.partition not in known:
            if need.size:
                return []
            raise _no_partition(asked.partition, known)
        mine = _chosen(asked, known.values())
        return [
            Offer("slurm", one.name, "this cluster", Decimal(0), limit_s=asked.time_s or one.limit_s)
            for one in (mine or known.values())
        ]

    def start(self, request: NodeRequest) -> None:
        self._gathering.start(request, self._submit)

    def look(self) -> list[NodeSight]:
        """One request to the controller for all jobs; none while there are none."""
        known = self._records.all()
        if not known:
            return []
        self._place.glance()
        jobs: dict[str, list[SlurmJob]] = {}
        for job in self._controller.jobs():
            jobs.setdefault(job.name, []).append(job)
        return [sight for one in known for sight in self._sights(one, self._actual(one, jobs.get(one.name, [])))]

    def stop(self, key: str) -> None:
        self._gathering.stop(key, self._stop_one, self._stop_all)

    def carried(self, key: str, access: Access) -> Access:  # noqa: ARG002  # a Protocol fixes the signature
        """A folder is one that this computer and the cluster share, under the same path."""
        return access

    # Starting

    def _submit(self, requests: list[NodeRequest]) -> None:
        """Written down before, and looked for by its name if that was begun once: Slurm has no keys of its own."""
        first = requests[0]
        name = f"{first.labels.get('run') or 'stoker'}.{self._mark[:6]}-{first.key}"
        one = self._records.of(first.key)
        if one and (job := self._actual(one, self._controller.named(name))):
            self._records.keep(replace(one, job=job.id))
            return
        asked = wanted(first.need or Need(pool=first.pool))
        limits = [one.limit_s for one in _chosen(asked, self._controller.partitions().values())]
        lead = lead_s(asked.time_s or max(limits, default=0.0))
        self._check_stores(first)
        folder = self._place.folder(first.key)
        nodes = [self._node(number, request, folder, lead) for number, request in enumerate(requests)]
        own = {
            given: request.variables[plain]
            for node, request in zip(nodes, requests, strict=True)
            for plain, given in node.settings.items()
        }
        shared = {plain: value for plain, value in first.variables.items() if plain not in (*_OWN, "STOKER_NODE_KEY")}
        comment = f"stoker {self._mark} {first.labels.get('owner', '')}".strip()
        self._place.prepare(first.key, commands.exports({**shared, **own}))
        words = commands.sbatch(name, folder, len(nodes), asked, lead, comment)
        one = self._records.keep(Allocation(first.key, name, tuple(node.key for node in nodes)))
        try:
            id = self._controller.submit(words, commands.script(folder, nodes))
        except ProviderUnavailable:
            raise  # it may have been submitted
        except ProviderFailed as error:
            self._records.forget(first.key)
            self._place.remove(first.key)
            raise self._explained(error, asked) from error
        self._records.keep(replace(one, job=id))

    def _node(self, number: int, request: NodeRequest, folder: str, lead: int) -> AllocatedNode:
        options = {
            "--store": request.store,
            "--orders": request.orders,
            "--folder": f"{folder}/{request.key}",
            "--environments": self._place.environments,
            "--uv": self._place.uv,
            "--cloud": NODE,
            "--events": f"{lead}:{self._controller.grace_s():g}:{folder}",
        }
        agent = [self._place.python, "-I", "-S", self._place.agent(), "run"]
        given = {plain: f"{plain}_{number}" for plain in _OWN if plain in request.variables}
        return AllocatedNode(request.key, (*agent, *(word for pair in options.items() for word in pair)), given)

    def _check_stores(self, request: NodeRequest) -> None:
        """A folder has to be shared with the login node. Raises ProviderFailed."""
        if not self._login:
            return
        routes = Access.from_text(request.access).routes if request.access else ()
        for url in sorted({one.url for one in routes if one.url.startswith("file://") and one.writes}):
            if not self._place.has_folder(path := unquote(urlsplit(url).path)):
                hint = "use a store that both reach: `stoker store add`"
                raise ProviderFailed(f"the folder of the store, {path}, is not on `{self._login}`", hint=hint)

    def _explained(self, error: ProviderFailed, asked: Wanted) -> StokerError:
        """With what exists, where Slurm only says that something does not."""
        known = asked.partition in ("", *self._controller.partitions())
        if "partition" in error.message.lower() and not known:
            return _no_partition(asked.partition, self._controller.partitions())
        return error

    # Looking

    def _actual(self, one: Allocation, found: list[SlurmJob]) -> SlurmJob | None:
        return commands.actual(found, one.job, self._place.claim(one.key) if len(found) > 1 else "")

    def _sights(self, one: Allocation, job: SlurmJob | None) -> list[NodeSight]:
        if job is None and one.job and not one.ended:
            job = self._controller.accounted(one.job)
        one = self._noted(one, job)
        keys = list(enumerate(one.keys))
        if one.is_over and not one.ended:
            return [NodeSight(key, NodeState.GONE, "it is being released") for _, key in keys]
        if not one.is_over:
            keys = [(number, key) for number, key in keys if not self._is_released(one, job, number)]
        if one.ended:
            return [NodeSight(key, NodeState.GONE, one.ended, taken=one.taken) for _, key in keys]
        if job is None:
            return [NodeSight(key, NodeState.GONE, "it was not submitted", unfinished=True) for _, key in keys]
        if job.state in commands.WAITING:
            waits = f"{job.reason} (Slurm job {job.id})" if job.reason not in ("", "None") else f"Slurm job {job.id}"
            return [NodeSight(key, NodeState.STARTING, waits=waits) for _, key in keys]
        return [self._running(one, number, key) for number, key in keys]

    def _noted(self, one: Allocation, job: SlurmJob | None) -> Allocation:
        """With its job, and how that ended: written down, because Slurm forgets it after some minutes."""
        if one.ended or (job is None and not one.job):
            return one
        if job is None:
            forgotten = f"Slurm has no job {one.job} any more, and no account of it"
            return self._records.keep(replace(one, ended=forgotten))
        if job.id != one.job:
            one = self._records.keep(replace(one, job=job.id))
        if job.state in commands.WAITING and self._place.claim(one.key) == job.id:
            return self._records.keep(replace(one, ended=commands.requeued(job), taken=True))
        if not commands.is_over(job):
            return one
        state = job.state.partition(" ")[0]
        words = commands.ended(job)
        if state == "FAILED" and not self._place.claim(one.key):
            folder = self._place.folder(one.key)
            words += f"; its script did not begin: can the node write to {folder}, and do the nodes share it?"
        return self._records.keep(replace(one, ended=words, taken=state in commands.TAKEN))

    def _is_released(self, one: Allocation, job: SlurmJob | None, number: int) -> bool:
        """It was stopped, and the other nodes of its allocation stay."""
        if one.keys[number] not in one.stopped:
            return False
        waits = job is None or job.state in commands.WAITING
        return waits or self._place.saw(one.key, f"ended.{number}")

    def _running(self, one: Allocation, number: int, key: str) -> NodeSight:
        """In an allocation of several nodes, one may have ended alone."""
        if len(one.keys) > 1 and self._place.saw(one.key, f"ended.{number}"):
            return NodeSight(key, NodeState.GONE, f"its step of Slurm job {one.job} ended")
        return NodeSight(key, NodeState.UP)

    # Stopping

    def _stop_one(self, one: Allocation, key: str) -> None:
        """The other nodes of its allocation stay. One that has not begun never will: its step looks for the mark."""
        number = one.keys.index(key)
        self._place.mark(one.key, f"stopped.{number}")
        if one.ended or any(job.state in commands.WAITING for job in self._controller.named(one.name)):
            return
        done = f"ended.{number}"
        _await(
            lambda: self._place.has(one.key, done) or self._cancel_step(one.job, key),
            f"node {key} of Slurm job {one.job}",
        )
        self._end(one, key)

    def _cancel_step(self, job: str, key: str) -> bool:
        """Asked for until it has ended: an allocation that has just begun has no steps yet."""
        self._controller.cancel_step(job, key)
        return False

    def _stop_all(self, one: Allocation) -> None:
        """Without its folder, an allocation that starts all the same ends at once."""
        if left := [job.id for job in self._controller.named(one.name) if not commands.is_over(job)]:
            for id in left:
                self._controller.cancel(id)
            _await(lambda: self._is_over(one.name), f"Slurm job {', '.join(left)}")
        for key in one.keys:
            self._end(one, key)
        self._place.remove(one.key)
        self._records.forget(one.key)

    def _is_over(self, name: str) -> bool:
        return all(commands.is_over(job) for job in self._controller.named(name))

    def _end(self, one: Allocation, key: str) -> None:
        """Raises ProviderFailed while log lines are not uploaded: the folder is still needed."""
        if not self._place.end(one.key, key):
            raise ProviderFailed(f"the last log lines of {key} are not uploaded yet: the store is unreachable")


def _await(is_over: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _OVER_S
    while not is_over():
        if time.monotonic() > deadline:
            raise ProviderUnavailable(f"{what} was cancelled, and has not ended yet")
        time.sleep(0.1)


def _chosen(asked: Wanted, known: Iterable[Partition]) -> list[Partition]:
    """Where a job goes: by its name, or by Slurm's default."""
    return [one for one in known if one.name == asked.partition or (not asked.partition and one.is_default)]


def _no_partition(name: str, known: Iterable[str]) -> JobInvalid:
    expected = "a partition of this cluster: " + ", ".join(f"`{one}`" for one in known)
    return JobInvalid([Problem("partition", f"`{name}`", expected, nearest(name, known))])

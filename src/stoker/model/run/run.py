"""A run and its attempts: the facts the server keeps, what a client sends to make one, its turn in the queue, and the
rule that prunes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from stoker.model.job.job import Job, Priority
from stoker.model.job.search import Trial
from stoker.model.job.sections import Software
from stoker.model.node import Offer, Pool
from stoker.model.orders import DataOrder, Notice, Terminal, Wish
from stoker.model.run.money import IdleSpell, Spell
from stoker.model.run.report import DataFigures, Effort, Mark, MetricSummary, Outcome, Refusal, Report
from stoker.model.run.stacks import Hang
from stoker.model.snapshot import Git

BROUGHT_BYTES = 1_000_000_000  # a checkpoint that is no larger comes back by itself


class RunState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"  # its budget is spent: it has no node, and resumes when somebody raises it
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


class AttemptState(StrEnum):
    ASKED = "asked"  # a node has been requested
    RUNNING = "running"  # an agent has reported
    ENDED = "ended"  # the agent gave its final report
    LOST = "lost"  # the node went away without one
    EVICTED = "evicted"  # the provider reclaimed the node
    MOVED = "moved"  # Stoker moved the run to another node

    @property
    def over(self) -> bool:
        return self not in (AttemptState.ASKED, AttemptState.RUNNING)


@dataclass(frozen=True, slots=True)
class Member:
    """One node of an attempt: most attempts have but one, a gang has several."""

    number: int  # of the attempt
    key: str  # of its node; unique in the workspace
    state: AttemptState
    asked_at: datetime
    started_at: datetime | None = None  # the script's start
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    exit_code: int | None = None
    message: str = ""
    cause: str = ""  # of that: a `Cause`, or the code of an error; empty: nothing went wrong
    hint: str = ""
    notice: Notice | None = None
    offer: Offer | None = None  # what its node is; None: the provider has but one kind
    trouble: str = ""  # the code of the error that ended it, such as `no-capacity`
    spare: Offer | None = None  # requested in advance: the node of the next attempt
    stays: bool = False  # it is over, and its machine is there for the next one, as after a restart
    refusals: tuple[Refusal, ...] = ()  # of what was requested in advance, newest last
    effort: Effort | None = None  # what its agent last said of its time, once it is over; None: nothing
    refused: str = ""  # why a report of its node was not used, when that first happened; empty: it never did
    notices: int = 0  # that its machine was given, and that were believed
    node: int = 0  # its number in the gang


@dataclass(frozen=True, slots=True)
class Attempt(Member):
    """One try at a run. What a member has is that of its first node; its state and how it ended are of the whole."""

    moving: str = ""  # why its notice is our own doing, in words; empty: it is not
    yielded: str = ""  # the name of the run that it makes room for; empty: it does not
    paused: str = ""  # the name of its cluster, if that was paused and its nodes are given back; empty: it was not
    first: Mark | None = None  # of its progress, where the run has a deadline
    last: Mark | None = None
    saved: bool = False  # it has committed a checkpoint of its own
    fused: Notice | None = None  # its money is nearly spent: it saves, and is stopped at the deadline
    peers: tuple[Member, ...] = ()  # the other nodes of its gang, in their order
    lead: AttemptState | None = None  # of the first node of a gang alone, once that is over
    hang: Hang | None = None  # the last time that none of its ranks made progress; None: that never happened
    broken_at: datetime | None = None  # when the gang had to end because one of its nodes did; None: it works
    fewer: str = ""  # why it has fewer nodes than the job prefers, in words; empty: it has all
    growth: tuple[Member, ...] = ()  # nodes of the next attempt that were requested in addition to these

    @property
    def members(self) -> tuple[Member, ...]:
        """Each node of the gang: the first one, and its peers."""
        return (self, *self.peers)

    @property
    def troubled(self) -> tuple[Member, ...]:
        """The nodes that were unavailable. The first one has the trouble of the whole attempt, whichever it was."""
        return tuple(one for one in self.peers if one.trouble) or ((self,) if self.trouble else ())

    @property
    def leaves(self) -> bool:
        """It gives its nodes back, for another run or because its cluster is paused: the next one gets others."""
        return bool(self.yielded or self.paused)

    @property
    def ahead(self) -> tuple[Offer, ...]:
        """What was requested in advance, for the next attempt."""
        return tuple(
            one for one in (*(each.spare for each in self.members), *(each.offer for each in self.growth)) if one
        )

    def with_member(self, member: Member) -> Attempt:
        """The same gang, with this in the place of the node of the same number."""
        if isinstance(member, Attempt):
            return replace(member, peers=self.peers)
        return replace(self, peers=tuple(member if one.node == member.node else one for one in self.peers))


@dataclass(frozen=True, slots=True)
class Start:
    """The run whose last checkpoint another one starts from."""

    run_id: str
    name: str
    store: str  # the name of the one that it is kept in
    attempts: int = 0
    nodes: int = 1
    step: float | None = None  # that the checkpoint was made at


@dataclass(frozen=True, slots=True)
class Run:
    id: str  # sorts by time; names everything of the run in the store
    name: str
    number: int
    job: Job
    snapshot: str
    python: str
    submitted_at: datetime
    store: str = "folder"  # the name of the one that everything of it is kept in
    person: str = ""
    trial: Trial | None = None  # what it is of a sweep; None: it is in none
    pool: Pool | None = None  # the cluster it was submitted to; None: to a provider
    warms: bool = False  # the server submitted it, to start nodes for the minimum of its cluster
    data: Mapping[str, str] = field(default_factory=dict)  # name to resolved path
    inputs: Mapping[str, DataOrder] = field(default_factory=dict)  # name to what is brought to the nodes
    data_marks: Mapping[str, str] = field(default_factory=dict)  # name to a fingerprint, for `diff`
    here: Mapping[str, str] = field(default_factory=dict)  # variables for nodes that are the submitting computer
    packages: Mapping[str, str] = field(default_factory=dict)  # of its Python, as its newest node told or has it
    image: str = ""  # the digest of the image that its script ran in, as its newest node told
    software: Software | None = None  # what its snapshot has of the submitting Python; None: nothing
    lock: str = ""  # the hash of the lock in its snapshot; empty: it has none
    environment: str = ""  # the id of the environment that its newest node made; empty: none, or not yet
    system: Mapping[str, str] = field(default_factory=dict)  # what that node is: kernel, CPU, driver
    git: Git | None = None
    rerun_of: str = ""
    start: Start | None = None  # None: it starts from nothing
    resumes: bool = False  # it continues the run that it starts from, which failed or was cancelled
    terminal: Terminal | None = None  # that its script gets; None: it has none
    land_in: str = ""  # folder on this computer to bring the outputs to; empty: the client fetches
    state: RunState = RunState.QUEUED
    reason: str = ""  # of the state, in words
    cause: str = ""  # the same for programs: a `Cause`, or the code of an error
    hint: str = ""
    wish: Wish = Wish.GO_ON
    attempts: tuple[Attempt, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    metrics: Mapping[str, MetricSummary] = field(default_factory=dict)
    data_figures: Mapping[str, DataFigures] = field(default_factory=dict)  # how the newest attempt read it
    output_files: int = 0
    output_bytes: int = 0
    checkpoint_files: int = 0  # of its newest checkpoint, what does not lie among the outputs
    checkpoint_bytes: int = 0
    stray: tuple[str, ...] = ()  # names of what its script left elsewhere
    stray_files: int = 0  # of which can be fetched
    stray_bytes: int = 0
    kept_until: datetime | None = None  # its node stays so long after its failure; None: there is none to keep
    clashes: tuple[str, ...] = ()  # outputs of which nodes of a gang have different versions: the first few
    landed: str = ""  # where the outputs are, once they are there
    land_problem: str = ""  # why they could not be brought there
    budget: Decimal | None = None  # the most it may cost in all; the job's, unless somebody has set another
    warned_usd: Decimal = Decimal(0)  # the budget whose warning was given
    save_s: float = 0.0  # what saving and uploading has taken at most, as its nodes say
    spells: tuple[Spell, ...] = ()  # what its nodes have cost, oldest first; none where they cost nothing
    idle: tuple[IdleSpell, ...] = ()  # when its nodes waited for the next run of its cluster: not part of its cost
    alone: str = ""  # what becomes of it while its server is away, in words; only as long as somebody asks
    restored_at: datetime | None = None  # from its record, while it was under way: nothing more is started for it
    version: int = 0  # grows with every saved change

    @property
    def experiment(self) -> str:
        return self.job.name

    @property
    def cluster(self) -> str:
        """Empty: it was submitted to a provider."""
        return self.pool.name if self.pool else ""

    @property
    def place(self) -> str:
        """What its job names with `on`."""
        return self.cluster or self.job.on

    @property
    def landing(self) -> bool:
        """The run has ended, and its outputs are still to be brought to their folder."""
        done = self.landed or self.land_problem
        brought = self.output_files or self.brings_checkpoint
        return self.state.ended and bool(self.land_in and brought and not done)

    @property
    def brings_checkpoint(self) -> bool:
        """What it leaves in its checkpoints is small enough to come back with its outputs."""
        return self.checkpoint_files > 0 and self.checkpoint_bytes <= BROUGHT_BYTES

    @property
    def open(self) -> bool:
        """It has not ended, or its outputs are not where they belong: whoever waits for it waits for this."""
        return not self.state.ended or self.landing

    @property
    def tended(self) -> bool:
        """The server has something to do for it: also for one that is over, and whose node is kept or still costs."""
        return self.open or self.kept_until is not None or self.costing or self.idling

    @property
    def idling(self) -> bool:
        """Some node of it waits for another run, or has not been seen gone since."""
        return any(spell.until is None for spell in self.idle)

    @property
    def costing(self) -> bool:
        """Some node of it has not been seen gone yet."""
        return any(spell.until is None for spell in self.spells)

    @property
    def waiting_nodes(self) -> tuple[str, ...]:
        """Keys of its nodes that wait for the next run of its cluster."""
        return tuple(spell.key for spell in self.idle if spell.until is None and not spell.released)

    @property
    def at_rest(self) -> bool:
        """It waits for a person, and nothing of it is anywhere: nobody has to look after it."""
        return self.state is RunState.PAUSED and self.wish is Wish.GO_ON and not self.costing

    @property
    def attempt(self) -> Attempt | None:
        """The newest one."""
        return self.attempts[-1] if self.attempts else None

    @property
    def width(self) -> int:
        """How many nodes it has; one that waits has none, and prefers so many."""
        under_way = self.state in (RunState.STARTING, RunState.RUNNING)
        return len(self.attempts[-1].members) if under_way and self.attempts else self.job.most_nodes

    @property
    def widths(self) -> tuple[int, ...]:
        """By attempt, from 0 for the run that it starts from: how many nodes it had. Empty: always the same number."""
        if not self.job.is_elastic:
            return ()
        return (self.start.nodes if self.start else 0, *(len(one.members) for one in self.attempts))

    @property
    def members(self) -> tuple[Member, ...]:
        """Every node that it has had, attempt by attempt."""
        return tuple(member for attempt in self.attempts for member in attempt.members)

    def with_member(self, member: Member) -> Run:
        """The same run, with this in the place of a node of its newest attempt."""
        return self.with_newest(self.attempts[-1].with_member(member))

    def with_software(self, report: Report) -> Run:
        """The same run, with what its newest node is and has."""
        return replace(
            self,
            packages=report.packages or self.packages,
            environment=report.environment or self.environment,
            system=report.system or self.system,
            image=report.image or self.image,
        )

    def with_newest(self, attempt: Attempt) -> Run:
        """The same run, with this in the place of its newest attempt."""
        return replace(self, attempts=(*self.attempts[:-1], attempt))


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a run's timeline."""

    at: datetime
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Submission:
    """`secrets` are held in memory and in a 0600 file until the run ends; they are never part of a `Run`."""

    key: str  # made by the client: sending the same submission twice makes one run
    job: Job
    snapshot: str
    python: str
    person: str = ""
    name: str = ""  # empty: `<job name>-<n>`
    data: Mapping[str, str] = field(default_factory=dict)
    pins: Mapping[str, str] = field(default_factory=dict)  # name to the version of a dataset, such as `ants@<hash>`
    data_marks: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    software: Software | None = None  # what its snapshot has of the submitting Python; None: nothing
    lock: str = ""  # the hash of the lock in its snapshot; empty: it has none
    git: Git | None = None
    rerun_of: str = ""
    start_from: str = ""  # the name of an ended run whose last checkpoint it starts from; empty: it starts from nothing
    resumes: bool = False  # it continues that run, which did not succeed, and is named after it
    here: Mapping[str, str] = field(default_factory=dict)  # variables that mean something on this computer only
    store: str = ""  # the name of the one to keep it in; empty: the workspace's
    terminal: Terminal | None = None  # of whoever submits, where the script is to have it
    land_in: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Turn:
    name: str
    on: str
    nodes: int
    priority: Priority
    person: str
    submitted_at: datetime
    waits_for: str  # in words
    starts_at: datetime | None = None  # when it will likely start; None: unknown
    unknown: str = ""  # why that is unknown; empty: it is not


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Ended runs that ended longer ago than this go. The newest run of each experiment always stays."""

    older_than_s: float
    keep_best: bool = False  # also the best of each experiment, by the metric that its job names
    experiment: str = ""  # only runs of this job; empty: of all


@dataclass(frozen=True, slots=True)
class Spared:
    """A run that is old enough to go, and why it stays."""

    name: str
    why: str


# What runs take up, in bytes.


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Of one run. All but the last two are in its store."""

    code: int = 0  # may be shared with other runs
    checkpoints: int = 0
    outputs: int = 0  # with what its script left elsewhere
    logs: int = 0  # with metrics, events and everything else that agents report
    here: int = 0  # on the server's computer: outputs that were brought back, and the folder of its node
    trouble: str = ""  # why some of it is not known; empty: all is

    @property
    def stored(self) -> int:
        return self.code + self.checkpoints + self.outputs + self.logs


@dataclass(frozen=True, slots=True)
class Sizes:
    """`total` counts what several runs share once; `home` are other parts of Stoker's folder, by name."""

    runs: Mapping[str, RunSizes]
    total: int = 0
    home: Mapping[str, int] = field(default_factory=dict)

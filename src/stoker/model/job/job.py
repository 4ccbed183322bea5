"""The job: what a person writes. A `Job` that exists is valid; it never changes once submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

from stoker.errors import JobInvalid, Problem
from stoker.model.job import fields
from stoker.model.job.fields import Either, ListOf, MapOf, Maybe, PerTrial, Plain, Record, a
from stoker.model.job.matrix import Matrix, MatrixKind
from stoker.model.job.references import MATRIX_VARIABLE, unknown_references, unusable_values
from stoker.model.job.search import Search, unfit
from stoker.model.job.sections import (
    DEFAULT,
    HangAction,
    HangOrOff,
    HangRule,
    MetricPatterns,
    PatternsOrOff,
    Target,
    TargetText,
)
from stoker.model.job.values import (
    DATA_PATH,
    DATASET_NAME,
    KEPT_NAME,
    PACKAGE_FILE,
    CheckpointPath,
    Choice,
    Duration,
    FolderInTree,
    FolderOfTree,
    Memory,
    Money,
    NodeCount,
    NodeRange,
    PlaceForData,
    PythonText,
    Scalar,
    Text,
    Truth,
    Whole,
    is_kept,
)


class Launcher(StrEnum):
    AUTO = "auto"
    PLAIN = "plain"
    TORCHRUN = "torchrun"
    MPI = "mpi"


class Priority(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class DataMode(StrEnum):
    AUTO = "auto"
    DOWNLOAD = "download"
    MOUNT = "mount"


class Fallback(StrEnum):
    NONE = "none"
    ON_DEMAND = "on-demand"


class _PerGpu(StrEnum):
    GPUS = "gpus"


class Packages(StrEnum):
    """Which packages of the submitting Python a node gets that does not share its files."""

    IMPORTED = "imported"
    ALL = "all"
    NONE = "none"


_NAME = Text("lower-case letters, digits, `-`, `_` and `.`, at most 60", r"[a-z0-9](?:[a-z0-9._-]{0,58}[a-z0-9])?")
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
# A registry, a repository in lower case, a tag and a digest; never an option of an engine.
_IMAGE = r"([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?[a-z0-9][a-z0-9._/-]*(:\w[\w.-]*)?(@sha256:[0-9a-f]{64})?"
THIS_COMPUTER = "local"  # where a run goes that names no other place


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The software a run needs. Default: the Python that submits; in a cloud, the packages that the script imports."""

    requirements: str | None = a(
        Maybe(PACKAGE_FILE),
        "`requirements.txt`, `pyproject.toml`, a lock file or a conda `environment.yml` to build a venv from",
        default=None,
    )
    kept: str | None = a(
        Maybe(KEPT_NAME),
        "an environment that the provider keeps, as `PROVIDER:NAME@VERSION`: its Python runs the script",
        default=None,
    )
    python: str | None = a(
        Maybe(PythonText()),
        "which Python; default: the one that submits",
        default=None,
    )
    packages: Packages | tuple[str, ...] | None = a(
        Maybe(Either(Choice(Packages), ListOf(Text("a package's name", r"[A-Za-z0-9][A-Za-z0-9._-]*")))),
        "which packages of the submitting Python are installed in a cloud: those that the script imports, those and a "
        "list of others, all, or none; default: `imported`",
        default=None,
    )
    image: str | None = a(
        Maybe(Text("the name of a container image, such as `pytorch/pytorch:latest`", _IMAGE)),
        "a container image",
        default=None,
    )
    dockerfile: str | None = a(Maybe(FolderInTree()), "a Dockerfile to build the image from", default=None)
    context: str | None = a(
        Maybe(FolderOfTree()),
        "the folder that the Dockerfile copies from; default: `.`, the working directory",
        default=None,
    )
    build_args: Mapping[str, str] = a(
        MapOf(Scalar(), _VARIABLE, "an argument's name"), "arguments of the Dockerfile (`ARG`)", default_factory=dict
    )
    registry: str | None = a(
        Maybe(Text("a repository, such as `registry.example.org/team/images`", r"[a-z0-9][a-z0-9._/:-]*")),
        "where the image of a Dockerfile is pushed, so that other nodes and runs pull it instead of building it",
        default=None,
    )
    login: str | None = a(
        Maybe(Text("the name of a secret", _VARIABLE)),
        "the name in `secrets` of `USER:PASSWORD` for the image's registry; the script does not get it",
        default=None,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        given = [name for name in ("requirements", "packages", "image", "dockerfile", "kept") if getattr(self, name)]
        if len(given) > 1:
            raise JobInvalid([Problem(given[1], f"`{given[0]}` as well", "only one of them")])
        if self.contained and self.python:
            raise JobInvalid([Problem("python", f"`{self.python}`", "nothing: an image has its own Python")])
        if self.kept and self.python:
            raise JobInvalid([Problem("python", f"`{self.python}`", f"nothing: `{self.kept}` has its own Python")])
        if self.login and not self.contained:
            raise JobInvalid([Problem("login", f"`{self.login}`", "an `image` or a `dockerfile` that it is for")])
        for name in ("context", "build_args", "registry"):
            if getattr(self, name) and not self.dockerfile:
                raise JobInvalid([Problem(name, "no `dockerfile`", "a `dockerfile` to build an image from")])

    @property
    def contained(self) -> bool:
        """The script runs in a container."""
        return bool(self.image or self.dockerfile)

    @property
    def is_taken_along(self) -> bool:
        """The software is what the submitting Python has. An interpreter that is named by its path is used as it is."""
        if self.requirements or self.contained or self.kept or self.packages is Packages.NONE:
            return False
        return self.packages is not None or "/" not in (self.python or "")


@dataclass(frozen=True, kw_only=True)
class DataInput:
    """Something the script reads: a registered dataset, or a path or URL."""

    dataset: str | None = a(Maybe(DATASET_NAME), "a dataset", default=None)
    path: str | None = a(Maybe(DATA_PATH), "a file or folder on this computer, or a URL", default=None)
    at: str | None = a(
        Maybe(PlaceForData()), "a path from the working directory where the script expects it", default=None
    )
    file: str | None = a(
        Maybe(FolderInTree("the path of a file in the dataset")),
        "the single file of the dataset to use, instead of the folder with all files",
        default=None,
    )
    mode: DataMode = a(PerTrial(Choice(DataMode)), "how the data gets to the script", default=DataMode.AUTO)
    shard: bool = a(Truth(), "each node gets its part of the dataset instead of all of it", default=False)
    sha256: str | None = a(
        Maybe(Text("64 hexadecimal digits", r"[0-9a-f]{64}")),
        "the file's hash; the run fails if it differs",
        default=None,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        if bool(self.dataset) == bool(self.path):
            found = "both `dataset` and `path`" if self.path else "neither `dataset` nor `path`"
            raise JobInvalid([Problem("dataset", found, "one of them")])
        if self.sha256 and "://" not in (self.path or ""):
            raise JobInvalid([Problem("sha256", f"`{self.sha256}`", "a URL as `path`: datasets have their own")])
        if self.shard and not self.dataset:
            raise JobInvalid([Problem("shard", "`true`", "a dataset: nothing else is taken apart")])
        if self.file and (self.shard or not self.dataset):
            raise JobInvalid([Problem("file", f"`{self.file}`", "a whole dataset, from which the file is taken")])


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Use spot machines, which are cheap because the cloud may evict (preempt) them."""

    max_price: Decimal | None = a(Maybe(Money()), "the highest price per hour", default=None)
    fallback: Fallback = a(Choice(Fallback), "what to use when no spot machine is available", default=Fallback.NONE)

    def __post_init__(self) -> None:
        fields.check(self)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints are kept."""

    keep: int = a(Whole(1), "how many of the newest are kept", default=3)
    best: str | None = a(
        Maybe(Text("a metric's name, with `-` in front where less is better", r"-?[^\W\d][\w.@/:-]*")),
        "also keep the best by this metric: `val_acc`, or `-loss` if lower is better",
        default=None,
    )

    def __post_init__(self) -> None:
        fields.check(self)


@dataclass(eq=False, repr=False)
class SpotOrNot:
    """`true` is plain spot, `false` is none, whatever else the job asks for."""

    record: Record = Record(Spot)
    expected: str = "`true`, `false`, or a mapping with `max_price`, `fallback`"

    def read(self, value: Plain, path: str) -> Spot | Literal[False] | None:
        if value in ("true", "false"):  # from `--set spot=true`
            value = value == "true"
        if value is None:
            return None
        if isinstance(value, bool):
            return Spot() if value else False
        if not isinstance(value, Mapping | Spot):
            raise fields.wrong(path, value, self)
        read: Spot = self.record.read(value, path)
        return read

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "boolean"}, {"type": "null"}, self.record.schema()]}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: one training as its user describes it. It has the fields of `stoker.yaml`, in the same order."""

    name: str = a(_NAME, "the name of the experiment; runs are called `<name>-1`, `<name>-2`, …")
    run: str = a(
        Text("a command line"), "the command; replaces `${data.x}`, `${outputs}`, `${checkpoints}` and `${resume}`"
    )
    matrix: Matrix | None = a(
        Maybe(MatrixKind()),
        "a sweep: the values of its trials by name, as `${matrix.<name>}` and `STOKER_MATRIX_<NAME>`",
        default=None,
    )
    max_parallel: int | None = a(Maybe(Whole(1)), "how many trials of the sweep run at the same time", default=None)
    search: Search | None = a(
        Maybe(Record(Search)), "stops bad trials of the sweep early, or chooses the values of its trials", default=None
    )
    source: str = a(Text("a folder"), "the code to upload; respects `.gitignore` and `.stokerignore`", default=".")
    environment: Environment = a(
        Record(
            Environment,
            FolderInTree("a requirements or lock file"),
            lambda text: {"kept" if is_kept(text) else "requirements": text},
        ),
        "the software the run needs; default: the Python that submits, with its packages installed in a cloud",
        default_factory=Environment,
    )
    data: Mapping[str, DataInput] = a(
        MapOf(Record(DataInput, Text("a path or URL"), lambda text: {"path": text}), _VARIABLE, "a name"),
        "the inputs of the script, by name: `${data.<name>}` and `STOKER_DATA_<NAME>`",
        default_factory=dict,
    )
    outputs: str = a(FolderInTree(), "the folder of results, downloaded automatically", default="outputs")
    checkpoints: tuple[str, ...] = a(
        ListOf(CheckpointPath()),
        "folders, files and globs that are saved, and restored before a restart; may be the outputs folder",
        default=(DEFAULT,),
    )
    create_folders: bool = a(
        Truth(),
        "creates the folders of `outputs` and `checkpoints`; `false`: the script does, and refuses existing ones",
        default=True,
    )
    resume: str | None = a(
        Maybe(Text("arguments such as `--resume ${checkpoint.newest}`")),
        "arguments added to the command when a checkpoint was restored; `${resume}` in `run` says where",
        default=None,
    )
    exact: bool = a(
        Truth(),
        "saves random states and loader positions with each file that the script saves, and restores them on load",
        default=False,
    )
    retention: Retention = a(Record(Retention), "which checkpoints are kept", default_factory=Retention)
    on: str = a(_NAME, "a provider or a cluster", default=THIS_COMPUTER)
    nodes: int | NodeRange = a(
        PerTrial(NodeCount()),
        "how many machines; a range such as `2..4` continues with fewer while not all are available",
        default=1,
    )
    cpus: int | None = a(Maybe(PerTrial(Whole(1))), "the least number of processors of each machine", default=None)
    memory: float | None = a(Maybe(Memory()), "the least memory of each machine, in GB", default=None)
    gpus: int | None = a(Maybe(PerTrial(Whole(1))), "the least number of GPUs of each machine", default=None)
    gpu: str | None = a(Maybe(Text("a GPU such as `A100` or `T4`")), "the GPU model", default=None)
    size: str | None = a(Maybe(Text("a provider's name for a size")), "the size of the machine", default=None)
    region: str | None = a(Maybe(Text("a provider's name for a region")), "the region", default=None)
    processes: int | Literal["gpus"] = a(
        PerTrial(Either(Whole(1), Choice(_PerGpu))), "ranks per node; `gpus` means one per GPU", default=1
    )
    launcher: Launcher = a(Choice(Launcher), "what starts the ranks", default=Launcher.AUTO)
    spot: Spot | Literal[False] | None = a(
        SpotOrNot(), "use spot machines; `false`: never, not even for a `deadline`", default=None
    )
    budget: Decimal | None = a(Maybe(Money()), "the most it may cost; it saves and pauses before", default=None)
    deadline: float | None = a(
        Maybe(Duration()), "uses spot while it can still be met, on-demand when it no longer can", default=None
    )
    time_limit: float | None = a(Maybe(Duration()), "the longest an attempt may run", default=None)
    lease: float | None = a(Maybe(Duration()), "the longest a machine continues without a server", default=None)
    keep_failed: float | None = a(
        Maybe(Duration()), "keep the node this long if the run fails, so you can inspect it", default=None
    )
    retries: int = a(Whole(0), "how often to retry after the script's own failures; evictions do not count", default=0)
    hang: HangRule | Literal[False] = a(
        HangOrOff(),
        "when the run is considered hung, and what happens then; a time alone is `after`",
        default_factory=HangRule,
    )
    priority: Priority = a(Choice(Priority), "the priority in the queue", default=Priority.NORMAL)
    metrics: MetricPatterns = a(
        PatternsOrOff(),
        "regular expressions that find metrics in the script's output, by name; `off`: find none in plain text",
        default_factory=dict,
    )
    stop_when: Target | None = a(Maybe(TargetText()), "ends the run early when a metric meets it", default=None)
    env: Mapping[str, str] = a(
        MapOf(Scalar(), _VARIABLE, "a variable's name"), "environment variables for the script", default_factory=dict
    )
    env_file: str | None = a(
        Maybe(Text("the path of a file with lines `NAME=value`")),
        "more variables, from a file next to the job file; `env` overrides it",
        default=None,
    )
    secrets: tuple[str, ...] = a(
        ListOf(Text("a variable's name", _VARIABLE)),
        "names of variables to pass from your environment; their values are not stored",
        default=(),
    )

    def __post_init__(self) -> None:
        fields.check(self)
        problems = [*unknown_references(self), *_clashes(self)] or [*unusable_values(self)]
        if problems:
            raise JobInvalid(problems)

    @classmethod
    def read(cls, value: Plain) -> Job:
        """A job from plain data. Raises JobInvalid with everything that is wrong."""
        if not isinstance(value, Mapping):
            raise JobInvalid([Problem("job", fields.shown(value), "a mapping with `name` and `run`")])
        try:
            job: Job = fields.read_record(cls, value, "")
        except fields.Problems as found:
            raise JobInvalid(found.problems) from None
        return job

    @property
    def most_nodes(self) -> int:
        """How many it runs on if all are available."""
        return self.nodes.most if isinstance(self.nodes, NodeRange) else self.nodes

    @property
    def least_nodes(self) -> int:
        """With fewer it does not run."""
        return self.nodes.least if isinstance(self.nodes, NodeRange) else self.nodes

    @property
    def is_elastic(self) -> bool:
        """It continues with fewer nodes while not all are available."""
        return self.least_nodes < self.most_nodes

    def plain(self) -> dict[str, Plain]:
        """The job as JSON holds it; `Job.read` gives it back."""
        read: dict[str, Plain] = fields.plain(self)
        read["nodes"] = str(self.nodes) if isinstance(self.nodes, NodeRange) else self.nodes
        read["stop_when"] = str(self.stop_when) if self.stop_when else None
        read["matrix"] = self.matrix.plain() if self.matrix else None
        return read


def schema() -> dict[str, Any]:
    """The JSON Schema for editors."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "stoker.yaml"}
    return head | fields.record_schema(Job)


def _clashes(job: Job) -> list[Problem]:
    reserved = [name for name in job.env if name.startswith("STOKER_") and not name.startswith(MATRIX_VARIABLE)]
    problems = [Problem(f"env.{name}", f"`{name}`", "a name that does not start with STOKER_") for name in reserved]
    changing = isinstance(job.nodes, NodeRange)
    if job.exact and (changing or job.launcher is Launcher.MPI):
        expected = "a job whose number of ranks stays the same, and not with mpi: use `stoker.checkpoint` there"
        problems.append(Problem("exact", "`true`", expected))
    if job.hang and job.hang.action is HangAction.RESTART and not job.retries:
        problems.append(Problem("hang.action", "`restart`", "`retries` of at least 1: each restart uses one of them"))
    if job.search and job.stop_when and not job.search.draws:
        problems.append(Problem("stop_when", f"`{job.stop_when}`", "nothing: `search` says when trials end"))
    problems += unfit(job.matrix, job.search) if job.matrix else ()
    login = job.environment.login
    if login and login not in job.secrets:
        problems.append(Problem("environment.login", f"`{login}`", f"a name in `secrets`: `secrets: [{login}]`"))
    both = [name for name in job.secrets if name in job.env]
    return problems + [
        Problem(f"env.{name}", "the name of a secret", "a name that `secrets` does not list") for name in both
    ]

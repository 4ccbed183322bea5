"""What a client sends to make a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.model.job.job import Job
from stoker.model.job.software import Software
from stoker.model.node.orders import Terminal
from stoker.model.snapshot import Git


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
    git: Git | None = None
    rerun_of: str = ""
    start_from: str = ""  # the name of an ended run whose last checkpoint it starts from; empty: it starts from nothing
    resumes: bool = False  # it continues that run, which did not succeed, and is named after it
    here: Mapping[str, str] = field(default_factory=dict)  # variables that mean something on this computer only
    store: str = ""  # the name of the one to keep it in; empty: the workspace's
    terminal: Terminal | None = None  # of whoever submits, where the script is to have it
    land_in: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

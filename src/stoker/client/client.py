"""The client: everything a program can ask of a server."""

from __future__ import annotations

from pathlib import Path

from stoker.client.comparison import Difference
from stoker.client.connection import Connection
from stoker.client.handle import Run
from stoker.client.settings import Settings
from stoker.client.submission import Plan, Progress
from stoker.model import run as model
from stoker.model.job import Job


class Client:
    def __init__(self, settings: Settings, connection: Connection) -> None:
        self.settings = settings
        self.connection = connection

    @classmethod
    def connect(cls, settings: Settings | None = None, *, start: bool = True) -> Client:
        """Settings default to the environment's. Starts this computer's server if need be, unless `start` is off."""
        raise NotImplementedError

    def plan(self, job: Job, folder: Path | str = ".") -> Plan:
        """What `submit` would do. Relative paths of the job start from `folder`."""
        raise NotImplementedError

    def submit(self, job: Job, folder: Path | str = ".", *, name: str = "", progress: Progress | None = None) -> Run:
        """Makes a run. `name` overrides `<job name>-<n>`."""
        raise NotImplementedError

    def rerun(self, name: str) -> Run:
        """A new run with the code, software, data and command of an old one; secrets come from the environment."""
        raise NotImplementedError

    def runs(self, limit: int = 50, experiment: str = "", state: str = "") -> list[model.Run]:
        """Newest first. `state` may be one of RunState, or `active`."""
        raise NotImplementedError

    def run(self, name: str) -> Run:
        """The run of this name. `last` is the newest of all, an experiment's name the newest of its runs."""
        raise NotImplementedError

    def remove(self, name: str) -> None:
        """Removes an ended run and everything the server holds of it. Outputs already brought back stay."""
        raise NotImplementedError

    def compare(self, first: str, second: str) -> Difference:
        raise NotImplementedError

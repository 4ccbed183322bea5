"""What the server tells an agent, through the store: the orders of an attempt, and later wishes about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from stoker.model.job import Job


@dataclass(frozen=True, slots=True)
class Orders:
    """Everything one agent needs to carry out its part of one attempt. Written once, never changed."""

    run_id: str
    run_name: str
    attempt: int
    node: int
    key: str
    job: Job
    snapshot: str  # id
    python: str  # interpreter to use where the environment names none
    data: Mapping[str, str] = field(default_factory=dict)  # name to the path the script is given
    nodes: int = 1
    master_address: str = "127.0.0.1"


class Wish(StrEnum):
    """What the server wants of an attempt under way. Wishes only get stronger."""

    GO_ON = "go-on"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Notice:
    """The warning that a node will be taken away at `deadline`. Another `at` is another notice."""

    at: datetime
    deadline: datetime

    @property
    def seconds(self) -> float:
        return (self.deadline - self.at).total_seconds()


@dataclass(frozen=True, slots=True)
class Wishes:
    wish: Wish = Wish.GO_ON
    reason: str = ""
    notice: Notice | None = None  # None after a notice: it was withdrawn

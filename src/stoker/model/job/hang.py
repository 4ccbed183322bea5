"""What a job says about runs that hang: after how long without progress, and what happens then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from stoker.errors import JobInvalid, Problem
from stoker.model.job import fields
from stoker.model.job.fields import FieldKind, Plain, Record, a
from stoker.model.job.values import Choice, Duration

AFTER_S = 600.0
LEAST_S = 1.0


class HangAction(StrEnum):
    REPORT = "report"
    RESTART = "restart"


@dataclass(frozen=True, kw_only=True)
class HangRule:
    """When a run hangs: no rank prints a line, reports a metric, saves a checkpoint or uses CPU time."""

    after: float = a(Duration(), "how long without progress", default=AFTER_S)
    action: HangAction = a(
        Choice(HangAction),
        "`report` says which rank is behind and shows the stacks; `restart` also ends the attempt as a failure of the "
        "script, which `retries` restarts",
        default=HangAction.REPORT,
    )

    def __post_init__(self) -> None:
        fields.check(self)
        if self.after < LEAST_S:
            raise JobInvalid([Problem("after", f"`{self.after:g}`", f"{LEAST_S:g} second or more")])


@dataclass(eq=False, repr=False)
class HangOrOff(Record):
    """A time alone is `after`; `off`: nobody looks."""

    of: type[Any] = HangRule
    short: FieldKind | None = field(default_factory=Duration)
    widen: Callable[[Any], Mapping[str, Plain]] = lambda seconds: {"after": seconds}

    @property
    def expected(self) -> str:
        return f"`off`, {super().expected}"

    def read(self, value: Plain, path: str) -> HangRule | Literal[False]:
        if value is False or value in ("off", "false"):
            return False
        read: HangRule = super().read({} if value is None else value, path)
        return read

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": ["off", False]}, super().schema()]}

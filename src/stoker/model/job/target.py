"""The value of a metric that ends a run well: `hr@10 >= 0.979`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isinf
from typing import Any

from stoker.model.job.fields import Plain, wrong

_TESTS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_METRIC = r"[A-Za-z_][\w.@/:-]*"
_TARGET = re.compile(rf"\s*({_METRIC})\s*(>=|<=|>|<)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


@dataclass(frozen=True, slots=True)
class Target:
    metric: str
    test: str
    value: float

    def reached_by(self, value: float) -> bool:
        return _TESTS[self.test](value, self.value)

    def __str__(self) -> str:
        return f"{self.metric} {self.test} {repr(self.value).removesuffix('.0')}"


@dataclass(eq=False, repr=False)
class TargetText:
    """The kind that reads a target."""

    expected: str = "a metric, `>=`, `<=`, `>` or `<`, and a number, such as `val_acc >= 0.95`"

    def read(self, value: Plain, path: str) -> Target:
        if isinstance(value, Target):
            return value
        found = _TARGET.fullmatch(value) if isinstance(value, str) and len(value) < 200 else None
        if not found or isinf(float(found[3])):
            raise wrong(path, value, self)
        return Target(found[1], found[2], float(found[3]))

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": _TARGET.pattern}

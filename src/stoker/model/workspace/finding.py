"""What a check found: one line that says how it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class CheckResult(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"  # could not be tried, because of what failed before


@dataclass(frozen=True, slots=True)
class Finding:
    """`advice` says what to do; empty where all is well."""

    name: str
    verdict: CheckResult
    found: str
    advice: str = ""


def failed(findings: Iterable[Finding]) -> bool:
    return any(one.verdict is CheckResult.FAIL for one in findings)

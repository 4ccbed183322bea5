"""What a measurement is: samples taken in interleaved rounds, their median, the goal and the machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.commands import scratch

Sample = TypeVar("Sample")

QUIET = 0.25  # of the processors' time may go to others when a contestant begins


@dataclass(frozen=True, slots=True)
class Goal:
    """One bound on a median: either `at_most` or `at_least`."""

    at_most: float | None = None
    at_least: float | None = None

    def met(self, value: float) -> bool:
        if self.at_most is not None and value > self.at_most:
            return False
        return self.at_least is None or value >= self.at_least

    def __str__(self) -> str:
        bounds = [(sign, bound) for sign, bound in (("≤", self.at_most), ("≥", self.at_least)) if bound is not None]
        return " ".join(f"{sign} {_short(bound)}" for sign, bound in bounds)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a table. `samples` has one value per round; a figure without a goal is there to compare with."""

    name: str
    unit: str
    samples: tuple[float, ...]
    goal: Goal | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return "met" if self.goal.met(self.median) else "missed"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. `alone` leaves the peers out; `patience_s` is for a quiet machine, before each sample."""

    rounds: int = 7
    quick: bool = False
    alone: bool = False
    patience_s: float = 4.0

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def interleave(self, contestants: Mapping[str, Callable[[], Sample]], warm_up: int = 1) -> dict[str, list[Sample]]:
        return interleave(contestants, self.rounds, warm_up, settle=lambda: wait_for_quiet(self.patience_s))


@dataclass(slots=True)
class Result:
    """Everything one benchmark found, with what is needed to judge it later."""

    benchmark: str
    figures: list[Figure] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    load_before: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def add(self, name: str, unit: str, samples: Sequence[float], goal: Goal | None = None) -> Figure:
        figure = Figure(name, unit, tuple(samples), goal)
        self.figures.append(figure)
        return figure

    def document(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "date": self.started_at.isoformat(timespec="seconds"),
            "machine": machine(),
            "load": {"before": list(self.load_before), "after": list(os.getloadavg())},
            "versions": dict(sorted(self.versions.items())),
            "notes": self.notes,
            "figures": [_row(figure) for figure in self.figures],
        }

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.benchmark}.json"
        path.write_text(json.dumps(self.document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    def table(self) -> str:
        head = ["what", "median", "best … worst", "unit", "n", "goal", ""]
        rows = [
            [
                figure.name,
                _short(figure.median),
                f"{_short(min(figure.samples))} … {_short(max(figure.samples))}",
                figure.unit,
                str(len(figure.samples)),
                str(figure.goal or ""),
                figure.verdict,
            ]
            for figure in self.figures
        ]
        widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        load = " ".join(f"{value:.2f}" for value in (self.load_before[0], os.getloadavg()[0]))
        return "\n".join([f"{self.benchmark} (load before and after: {load})", *(line.rstrip() for line in lines)])


def wait_for_quiet(limit_s: float) -> float:
    """Returns once the processors are mostly idle, or when the time is up; the share that was busy at the last look.

    It also lets the tail of the contestant before die down.
    """
    deadline = time.monotonic() + limit_s
    while True:
        before = _processor_times()
        time.sleep(0.2)
        idle_s, all_s = (now - then for now, then in zip(_processor_times(), before, strict=True))
        busy = 1 - idle_s / all_s if all_s else 0.0
        if busy <= QUIET or time.monotonic() > deadline:
            return busy


def interleave(
    contestants: Mapping[str, Callable[[], Sample]],
    rounds: int,
    warm_up: int = 1,
    settle: Callable[[], object] = lambda: None,
) -> dict[str, list[Sample]]:
    """Every contestant once per round, so that a noisy minute hits all of them.

    Each round starts with another contestant, so that none always follows the same neighbour. `settle` is called
    before every sample. Warm-up rounds fill caches and are not counted.
    """
    names = list(contestants)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            settle()
            sample = contestants[name]()
            if number >= 0:
                samples[name].append(sample)
    return samples


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of them do not exceed: one that was really seen."""
    ordered = sorted(values)
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


def over(samples: Sequence[float], floor: Sequence[float]) -> list[float]:
    """How much more each sample took than the floor in the same round."""
    return [sample - bare for sample, bare in zip(samples, floor, strict=True)]


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "folder": _file_system(scratch()),
    }


def _processor_times() -> tuple[int, int]:
    """Idle and all, in ticks since boot; equal where the kernel does not tell."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0, 0
    return ticks[3] + ticks[4], sum(ticks)


def _file_system(folder: Path) -> str:
    """Its kind, such as `tmpfs`; empty where the kernel does not tell."""
    kinds = {}
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            _, mounted, kind, *_ = line.split()
            kinds[Path(mounted)] = kind
    return next((kinds[place] for place in (folder, *folder.parents) if place in kinds), "")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _row(figure: Figure) -> dict[str, Any]:
    goal = figure.goal and {"at_most": figure.goal.at_most, "at_least": figure.goal.at_least}
    return {
        "name": figure.name,
        "unit": figure.unit,
        "median": round(figure.median, 6),
        "goal": goal and {key: value for key, value in goal.items() if value is not None},
        "verdict": figure.verdict,
        "samples": [round(sample, 6) for sample in figure.samples],
    }


def _short(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"

"""What an allocation is asked for with: settings of a cluster and needs of a job, as options of `sbatch`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.errors import JobInvalid, Problem
from stoker.model.job.fields import nearest
from stoker.model.node import Need

SETTINGS = ("partition", "account", "qos", "constraint", "gres", "time", "reservation")
_PLAIN = re.compile(r"[A-Za-z0-9_.,:|&*()\[\]/=@%+-]{1,200}")  # neither an option of its own nor words of a shell
_CLOCK = re.compile(r"(?:(?P<days>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")
_SPELLED = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
LEAD_S = 120  # of the notice before the end of the time limit
MOST_LEAD = 4  # a short limit gives a quarter of itself


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of each allocation. Empty or zero: Slurm's own default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    gres: str = ""
    reservation: str = ""
    time_s: float = 0.0
    cpus: int = 0  # of each node
    memory_mb: int = 0

    def options(self) -> list[str]:
        named = ("partition", "account", "qos", "constraint", "gres", "reservation")
        found = [f"--{name}={getattr(self, name)}" for name in named if getattr(self, name)]
        found += [f"--time={math.ceil(self.time_s / 60)}"] if self.time_s else []
        found += [f"--cpus-per-task={self.cpus}"] if self.cpus else []
        found += [f"--mem={self.memory_mb}M"] if self.memory_mb else []
        return found


def wanted(need: Need) -> Wanted:
    """Raises JobInvalid with the setting that cannot be used."""
    given = dict(need.pool.settings) if need.pool else {}
    one = _of_settings(given)
    if need.gpus:
        model = f":{need.gpu.lower()}" if need.gpu else ""
        gres = [part for part in one.gres.split(",") if part and not part.startswith("gpu")]
        one = replace(one, gres=",".join([f"gpu{model}:{need.gpus}", *gres]))
    if need.size:
        one = replace(one, partition=_plain("size", need.size))
    return replace(one, cpus=need.cpus, memory_mb=math.ceil(need.memory_gb * 1000))


def _of_settings(given: Mapping[str, str]) -> Wanted:
    for name in given:
        if name not in SETTINGS:
            expected = "a setting of Slurm: " + ", ".join(f"`{one}`" for one in SETTINGS)
            raise JobInvalid([Problem(f"setting {name}", f"`{given[name]}`", expected, nearest(name, SETTINGS))])
    time_s = seconds(given["time"]) if "time" in given else 0.0
    named: dict[str, Any] = {name: _plain(name, value) for name, value in given.items() if name != "time"}
    return replace(Wanted(time_s=time_s), **named)


def _plain(name: str, value: str) -> str:
    if not _PLAIN.fullmatch(value) or value.startswith("-"):
        raise JobInvalid([Problem(name, f"`{value}`", f"a {name} as in `sbatch --{name}=…`")])
    return value


def seconds(text: str) -> float:
    """Of `4h`, `90m`, or as Slurm spells it: `90`, `90:00`, `4:00:00`, `1-12`, `1-12:00:00`. Raises JobInvalid."""
    if not (found := _seconds(text)):
        raise JobInvalid([Problem("setting time", f"`{text}`", "a time such as `4h`, or as `sbatch --time` takes it")])
    return float(found)


def limit(printed: str) -> float:
    """Of a partition, as `sinfo` prints it; 0: none."""
    return float(_seconds(printed))


def _seconds(text: str) -> int:
    """0 if the text is not a time."""
    if (spelled := _SPELLED.fullmatch(text)) and any(spelled.groups()):
        return sum(int(part or 0) * unit for part, unit in zip(spelled.groups(), (86400, 3600, 60, 1), strict=True))
    if clock := _CLOCK.fullmatch(text):
        return _of_clock(int(clock["days"] or 0), [int(one) for one in clock["parts"].split(":")], bool(clock["days"]))
    return 0


def _of_clock(days: int, parts: list[int], of_day: bool) -> int:
    """Behind days, Slurm begins with hours; without them, one or two numbers are minutes and seconds."""
    units = (3600, 60, 1) if of_day or len(parts) == 3 else (60, 1)
    return days * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def lead_s(limit_s: float) -> int:
    """Seconds of notice before a time limit; 0 without a limit: then no notice comes."""
    return max(int(min(LEAD_S, limit_s / MOST_LEAD)), 1) if limit_s else LEAD_S

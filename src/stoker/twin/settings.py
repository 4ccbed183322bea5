"""The settings of a twin: its only file that reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import BadInput
from stoker.model.workspace.home import Home
from stoker.twin.time.weather import FORECASTS


@dataclass(frozen=True, slots=True)
class TwinSettings:
    folder: Path
    port: int = 0  # 0: any free one
    seed: int | None = None  # None: the earlier one, or 0
    forecast: str = ""  # empty: the earlier weather, or calm
    speed: float = 1.0
    walls: bool | None = None  # isolate machines in namespaces; None: where it is supported
    shown: tuple[str, ...] = ()  # folders of this computer that machines see besides the operating system
    blob: bool = False  # start its Blob service at once
    azurite: tuple[Path, ...] = ()  # folders of npm installations


def from_environment(environ: Mapping[str, str] | None = None) -> TwinSettings:
    """The variables that `stoker twin up` sets for its child; None: those of this process."""
    given = os.environ if environ is None else environ
    root = Path(given.get("STOKER_HOME") or "~/.stoker").expanduser().absolute()
    name = given.get("STOKER_TWIN_WEATHER", "")
    if name and name not in FORECASTS:
        raise BadInput(f"STOKER_TWIN_WEATHER is `{name}`, expected one of {', '.join(FORECASTS)}")
    return TwinSettings(
        folder=Home(root).twin,
        port=int(_number(given, "STOKER_TWIN_PORT", 0)),
        seed=int(_number(given, "STOKER_TWIN_SEED", 0)) if given.get("STOKER_TWIN_SEED") else None,
        forecast=name,
        speed=_number(given, "STOKER_TWIN_SPEED", 1.0),
        walls=False if given.get("STOKER_TWIN_PLAIN") else None,
        shown=_pythons() + tuple(filter(None, given.get("STOKER_TWIN_SHOWN", "").split(os.pathsep))),
        blob=bool(given.get("STOKER_TWIN_BLOB")),
        azurite=_azurite(given.get("STOKER_AZURITE", ""), Home(root)),
    )


def _azurite(named: str, home: Home) -> tuple[Path, ...]:
    """The configured folder; the one that `stoker run --twin` installs into; the one of a source tree of Stoker."""
    first = (Path(named).expanduser(),) if named else ()
    return (*first, home.azurite, Path(__file__).parents[3] / ".services")


def _pythons() -> tuple[str, ...]:
    """This Python, where it is not the operating system's: it would be part of a VM's image."""
    return tuple(place for place in dict.fromkeys((sys.base_prefix, sys.prefix)) if not place.startswith("/usr"))


def _number(given: Mapping[str, str], name: str, default: float) -> float:
    try:
        number = float(given.get(name) or default)
    except ValueError:
        raise BadInput(f"{name} is `{given[name]}`, expected a number") from None
    if number < 0:
        raise BadInput(f"{name} is {number}, expected at least 0")
    return number

"""The machine an agent is on, as it was told about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.nodefolder import NodeFolder


@dataclass(frozen=True, slots=True)
class Machine:
    folder: NodeFolder
    environments: Path
    uv: str  # empty: look for it
    library: Path  # what scripts import stoker from
    variables: Mapping[str, str] = field(repr=False)  # the agent's own, with the secrets of the run

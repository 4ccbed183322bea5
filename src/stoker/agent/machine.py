"""The machine an agent is on, as it was told about it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stoker.agent.nodefolder import NodeFolder

DRIVER_S = 240.0


@dataclass(frozen=True, slots=True)
class Machine:
    folder: NodeFolder
    environments: Path
    uv: str  # empty: look for it
    library: Path  # what scripts import stoker from
    variables: Mapping[str, str] = field(repr=False)  # the agent's own, with the secrets of the run
    cloud: str = ""  # the module of its cloud's plug-in, see `cloud.py`; empty: it is of none
    events: str = ""  # the URL where the machine hears that it will be taken away; empty: nobody says so
    ready_s: float = 0.0  # how long it may take until the machine is ready for a script; 0: it always is
    reboot_mark: str = ""  # a file that is there as long as the machine has to be restarted
    restored: bool = False  # its provider made it again, after an eviction: an earlier one has begun the attempt
    package_lock: str = ""  # a file that is locked as long as packages are being installed
    quiet_s: float = (
        DRIVER_S  # a driver that is missing, and that nothing has been installing for so long, does not come
    )
    processes: Path = Path("/proc")

    def agent_command(self, verb: str) -> list[str]:
        """How another process does something with the agent's code."""
        return [sys.executable, "-I", "-S", *_from(self.library), verb]


def _from(library: Path) -> list[str]:
    """A packed agent is run as it is; sources have to be told where they are."""
    if library.is_file():
        return [str(library)]
    start = (
        f"import sys; sys.path.insert(0, {str(library)!r}); from stoker.agent.__main__ import main; sys.exit(main())"
    )
    return ["-c", start]

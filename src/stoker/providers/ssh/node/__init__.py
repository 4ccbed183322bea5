"""What the agent needs to know about a host that is reached over ssh, shipped with it: how it leaves nothing there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.agent.machine.cloud import CloudListener, SelfRemoval
from stoker.agent.machine.machine import remove_tree
from stoker.agent.processes.family import end_all
from stoker.model.orders import Notice


@dataclass(frozen=True, slots=True)
class HostRemoval:
    """The host stays; everything of this node on it goes: processes first, then the folder."""

    folder: str
    key: str

    def carry_out(self) -> None:
        end_all(self.key)
        remove_tree(Path(self.folder))


def listen(url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None]) -> CloudListener:
    raise NotImplementedError("a host gives no notice")


def removal(settings: Mapping[str, str]) -> SelfRemoval:
    return HostRemoval(**settings)

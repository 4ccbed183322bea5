"""What the agent needs to know about Azure VMs, shipped with it: nothing but the standard library."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.agent.machine.cloud import CloudListener, SelfRemoval
from stoker.model.node.orders import Notice
from stoker.providers.azure.node.release import Release
from stoker.providers.azure.node.scheduledevents import ScheduledEvents


def listen(url: str, warn: Callable[[Notice | None], None], tell: Callable[[str, str], None]) -> CloudListener:
    return ScheduledEvents(url, warn, tell)


def removal(settings: Mapping[str, str]) -> SelfRemoval:
    return Release(**settings)

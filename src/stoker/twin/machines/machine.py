"""What this process knows of one machine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from stoker.twin.machines import MachineSpec
from stoker.twin.machines.folder import MachineFolder
from stoker.twin.machines.listener import Listener
from stoker.twin.machines.metadata import NO_EVENTS
from stoker.twin.machines.power import Power


class Machine:
    """`lock` is held while it is powered on or off; `power` is None while it is off."""

    def __init__(self, spec: MachineSpec, folder: MachineFolder) -> None:
        self.spec = spec
        self.folder = folder
        self.lock = threading.RLock()
        self.power: Power | None = None
        self.off = threading.Event()
        self.events: Mapping[str, Any] = dict(NO_EVENTS)
        self.listeners: list[Listener] = []
        self.commands = 0
        self.waking = threading.Lock()
        self.awake = False  # Scheduled Events has been asked for once

"""Executes chores: one after the other for each machine, many machines at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from stoker.twin.arm.vms import parts
from stoker.twin.machines import Machines, MachineSpec
from stoker.twin.state import Chore, CloudState

log = logging.getLogger("stoker.twin")

_RUN_S = 90 * 60.0  # Azure's limit for a command
Done = Callable[[str, Any, str], None]  # chore id, result, error


class MachinePerformer:
    """Makes the machines match the cloud's decisions. `done` is called after each chore, from another thread."""

    def __init__(self, machines: Machines, done: Done) -> None:
        self._machines = machines
        self._done = done
        self._busy: set[str] = set()  # running chores
        self._lock = threading.Lock()

    def look(self, cloud: CloudState) -> None:
        """Starts what can be started now. Call it after chores were added or done."""
        with self._lock:
            for chore in ready(cloud, self._busy):
                self._busy.add(chore.id)
                threading.Thread(target=self._perform, args=(cloud, chore), name=chore.verb, daemon=True).start()

    def _perform(self, cloud: CloudState, chore: Chore) -> None:
        result, error = None, ""
        try:
            result = self._act(cloud, chore)
        except Exception as problem:  # in any case, the operation that waits for it must end
            error = f"{type(problem).__name__}: {problem}"
            log.exception("%s of machine %s failed", chore.verb, chore.machine)
        self._done(chore.id, result, error)
        with self._lock:
            self._busy.discard(chore.id)

    def _act(self, cloud: CloudState, chore: Chore) -> Any:
        match chore.verb:
            case "create":
                return self._create(cloud, chore)
            case "start":
                return self._machines.start(chore.machine)
            case "power_off":
                return self._machines.power_off(chore.machine)
            case "destroy":
                return self._machines.destroy(chore.machine)
            case "events":
                return self._machines.set_events(chore.machine, chore.details["document"])
            case "run":
                return self._run(chore)
        raise ValueError(f"unknown chore `{chore.verb}`")

    def _create(self, cloud: CloudState, chore: Chore) -> None:
        vm, instance = cloud.find(chore.vm), cloud.instance(chore.vm)
        if vm is None or instance is None:  # deleted before it was created
            return
        data, told = parts.custom_data(vm), parts.facts(cloud, vm)
        network = parts.network_of(cloud, vm).lower()
        outbound = parts.has_way_out(cloud, vm)
        self._machines.create(MachineSpec(chore.machine, data, instance.address, told, network, outbound))

    def _run(self, chore: Chore) -> Any:
        code, out, err = self._machines.run_command(chore.machine, str(chore.details["script"]), _RUN_S)
        if chore.details.get("form") == "extension":
            if code:
                raise RuntimeError(f"the command ended with exit status {code}\n{out}\n{err}")
            return None
        word = (
            "succeeded"
            if code == 0
            else f"failed: failed to execute command: command terminated with exit status={code}"
        )
        message = f"Enable {word}: \n[stdout]\n{out}\n[stderr]\n{err}"
        status = {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"}
        return {"value": [{**status, "message": message}]}


def ready(cloud: CloudState, busy: set[str]) -> list[Chore]:
    """The chores that may start: the first of each machine. A running command blocks nothing: power changes run beside
    it."""
    found, held = [], set()
    for chore in cloud.chores.values():
        if chore.machine not in held and chore.id not in busy:
            found.append(chore)
        if chore.verb != "run":
            held.add(chore.machine)
    return found

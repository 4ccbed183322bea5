"""The running twin: holds the cloud, applies one change at a time, saves it, then executes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stoker.twin import state
from stoker.twin.access import tokens
from stoker.twin.machines import Machines
from stoker.twin.machines.frontage import Frontage
from stoker.twin.performer import MachinePerformer
from stoker.twin.state import CloudState, MachinePower
from stoker.twin.time import events, passing, power
from stoker.twin.time.clock import TwinClock

T = TypeVar("T")

log = logging.getLogger("stoker.twin")

_TICK_S = 0.02
_CHECK_S = 1.0  # between checks of the machines
_SAVE_S = 5.0  # the most time that a twin loses when it is killed


class TwinWorld:
    """`change` is the only way in. Machines are opened with `token_for` and `acknowledged` of this world."""

    def __init__(self, file: Path, cloud: CloudState, clock: TwinClock) -> None:
        self.clock = clock
        self._file = file
        self._cloud = cloud
        self._saved: CloudState | None = None
        self._saved_at = 0.0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._machines: Machines | None = None
        self._performer: MachinePerformer | None = None
        self._frontage: Frontage | None = None
        self._ticking = threading.Thread(target=self._tick, name="twin-time", daemon=True)

    @property
    def cloud(self) -> CloudState:
        return self._cloud

    @property
    def machines(self) -> Machines:
        assert self._machines, "the world has not begun"
        return self._machines

    def run(self, machines: Machines) -> None:
        """Time starts. Machines that should be on and are not are powered on, as after an outage of the region."""
        self._machines = machines
        self._performer = MachinePerformer(machines, self._performed)
        self._frontage = Frontage(machines)
        self.change(lambda cloud, now: (_healed(cloud, now, machines, self.clock), None))
        self._ticking.start()

    def close(self) -> None:
        """Time stops. Machines are unchanged."""
        self._over.set()
        if self._ticking.is_alive():
            self._ticking.join()
        self.change(lambda cloud, now: (replace(cloud, now=now), None))
        if self._frontage:
            self._frontage.close()
            self._frontage = None

    def change(self, transition: Callable[[CloudState, float], tuple[CloudState, T]]) -> T:
        """One step: decide, save, then act. If the transition raises, nothing changes."""
        with self._lock:
            now = self.clock.now()
            cloud, value = transition(replace(self._cloud, now=now), now)
            self._keep(passing.advance(cloud, now, self.clock.wall))
        return value

    def _keep(self, cloud: CloudState) -> None:
        self._cloud = cloud
        if self._is_news(cloud):
            state.save(self._file, cloud)
            self._saved, self._saved_at = cloud, time.monotonic()
            if self._frontage:
                self._frontage.look(cloud)
        if self._performer and cloud.chores:
            self._performer.look(cloud)

    def _is_news(self, cloud: CloudState) -> bool:
        if self._saved is None or time.monotonic() - self._saved_at > _SAVE_S:
            return True
        return replace(self._saved, now=cloud.now, requests=cloud.requests) != cloud

    def _tick(self) -> None:
        looked_at = 0.0
        while not self._over.wait(_TICK_S):
            try:
                self.change(lambda cloud, _: (cloud, None))
                if time.monotonic() - looked_at > _CHECK_S:
                    looked_at = time.monotonic()
                    self._look_at_machines()
            except Exception:  # time must continue: a twin that stands still looks like one that is merely slow
                log.exception("a step of the twin's time failed")

    def _look_at_machines(self) -> None:
        running = [one for one in self._cloud.instances.values() if one.power is MachinePower.RUNNING]
        for instance in running:
            if not self.machines.alive(instance.name):
                vm = instance.vm
                self.change(lambda cloud, now, vm=vm: (passing.guest_stopped(cloud, vm, now), None))  # type: ignore[misc]

    def _performed(self, chore: str, result: Any, error: str) -> None:
        self.change(lambda cloud, _: (passing.performed(cloud, chore, result, error), None))

    def expose(self, port: int) -> None:
        """Machines reach this port of the host's loopback at the same address."""
        if self._machines:
            self._machines.expose(port)

    def token_for(self, machine: str, resource: str, identity: str = "") -> dict[str, Any]:
        """The metadata service's response to a token request. LookupError: the machine has no such identity, or several
        and none is named."""
        return machine_token(self._cloud, machine, resource, time.time(), identity)

    def acknowledged(self, machine: str, ids: Sequence[str]) -> None:
        self.change(lambda cloud, now: (events.acknowledged(cloud, machine, ids, now), None))


def machine_token(
    cloud: CloudState, machine: str, resource: str, unix_now: float, identity: str = ""
) -> dict[str, Any]:
    """`identity` names one by its resource id, its client or its object."""
    instance = next((one for one in cloud.instances.values() if one.name == machine), None)
    vm = cloud.find(instance.vm) if instance else None
    has = (vm.body.get("identity") or {}) if vm else {}
    named = {id.lower(): one for id, one in (has.get("userAssignedIdentities") or {}).items()}
    own = {"clientId": has.get("principalId"), "principalId": has.get("principalId")}
    if identity:
        found = [one for id, one in named.items() if identity.lower() in (id, *(str(word) for word in one.values()))]
        found += [own] if identity == own["principalId"] else []
    else:
        found = [own] if has.get("principalId") else list(named.values())
    if len(found) > 1:
        raise LookupError(
            "Multiple user assigned identities exist, please specify the clientId / resourceId of the identity in the "
            "token request"
        )
    if not found:
        raise LookupError("Identity not found")
    client, principal = str(found[0]["clientId"]), str(found[0]["principalId"])
    issued = tokens.issue(cloud, client, principal, resource, unix_now)
    times = {"expires_on": str(int(unix_now) + tokens.LIFETIME_S), "not_before": str(int(unix_now))}
    return {**issued, **times, "expires_in": str(tokens.LIFETIME_S), "client_id": client, "resource": resource}


def _healed(cloud: CloudState, now: float, machines: Machines, clock: TwinClock) -> CloudState:
    for instance in cloud.instances.values():
        waiting = any(chore.machine == instance.name for chore in cloud.chores.values())
        if instance.power is not MachinePower.RUNNING or waiting or machines.alive(instance.name):
            continue
        cloud = cloud.order(power.chore(cloud, "start", instance, now))
        cloud = cloud.put_instance(replace(instance, boots=instance.boots + 1))
        cloud = events.tell(cloud, instance.vm, clock.wall)
    return cloud

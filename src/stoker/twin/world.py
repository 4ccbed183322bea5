"""The running twin: holds the cloud, applies one change at a time, saves it, then executes its chores."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from stoker.twin import state, tokens
from stoker.twin.arm.vms import parts
from stoker.twin.machines import Machines, MachineSpec
from stoker.twin.machines.outward import Frontage
from stoker.twin.state import Chore, CloudState, MachinePower
from stoker.twin.time import passing, power
from stoker.twin.time.weather import TwinClock

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
        longest_s = float(chore.details.get("longest_s", _RUN_S))
        code, out, err = self._machines.run_command(chore.machine, str(chore.details["script"]), longest_s)
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


T = TypeVar("T")


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
        self.change(lambda cloud, now: (power.acknowledged(cloud, machine, ids, now), None))


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
        cloud = power.tell(cloud, instance.vm, clock.wall)
    return cloud

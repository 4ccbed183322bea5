"""Fault scripts: what befalls a run on the twin, drawn from a seed, and whoever carries them out, many at once."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import URLError

from azuretwin import TRAIN, Cloud, weights_after
from shell import Shell

from stoker.client.api.client import Client
from stoker.client.api.resources import Nodes
from stoker.client.settings import from_environment
from stoker.errors import StokerError
from stoker.model.job.job import Job, Spot
from stoker.model.run.run import Run, RunState

STEPS, STEP_S = 30, 0.05
REST_S = 4.0  # at a step where something is to happen: the news of it takes a second, and more on a busy machine
PATIENCE_S = 240.0
# Ends by itself with an error, as scripts do: never to be mistaken for weather.
FAILING = TRAIN.replace("        print(", '        if state["step"] == 25: raise SystemExit(3)\n        print(')
ENDLESS = TRAIN.replace("        print(", '        if state["step"] == 25: time.sleep(600)\n        print(')
ENDS = {"good": RunState.SUCCEEDED, "failing": RunState.FAILED, "cancelled": RunState.CANCELLED}
ASKS = (("PUT", "/deployments/"), ("PUT", "/resourcegroups/"), ("GET", "/virtualmachines"), ("GET", "/resourcegroups"))


@dataclass(frozen=True, slots=True)
class Mishap:
    """Happens when its run has come to this step, whichever attempt it is in."""

    step: int
    kind: str  # evict, fault, kill or cancel
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Script:
    seed: int
    sort: str  # good, failing or cancelled: how the run is to end
    mishaps: tuple[Mishap, ...]
    story: str = "seed"

    @property
    def name(self) -> str:
        return f"{self.story}-{self.seed}"


def script(seed: int) -> Script:
    """The same for the same seed, for ever: what a failing seed is worth."""
    draw = random.Random(f"fault script {seed}")
    sort = draw.choices(("good", "failing", "cancelled"), (8, 1, 1))[0]
    mishaps = [_mishap(draw) for _ in range(draw.randint(1, 4))]
    if sort == "cancelled":
        mishaps.append(Mishap(draw.randint(3, 15), "cancel"))
    return Script(seed, sort, tuple(sorted(mishaps, key=lambda one: one.step)))


def unforeseen(seed: int) -> Script:
    """What no document of Azure's names, at any request in the life of a run; it is to end well."""
    draw = random.Random(f"unforeseen {seed}")
    mishaps = [_oddity(draw) for _ in range(draw.randint(3, 5))]
    mishaps.append(Mishap(draw.randint(3, 20), "evict", {"notice_s": draw.choice((30, 8, 0))}))
    return Script(seed, "good", tuple(sorted(mishaps, key=lambda one: one.step)), "odd")


# Codes that mean something to the client, and some that mean nothing to anybody.
STATUSES = (400, 401, 403, 404, 405, 408, 409, 410, 412, 418, 423, 429, 500, 501, 502, 503, 504, 520)
LISTS = (("GET", "/virtualmachines"), ("GET", "/resourcegroups"), ("GET", "/resources"))
CALLS = (*ASKS, *LISTS, ("GET", "/deployments/"), ("GET", "/skus"), ("DELETE", ""), ("", "/roledefinitions/"), ("", ""))
CHANGES = (("PUT", "/deployments/"), ("PUT", "/resourcegroups/"), ("DELETE", "/resourcegroups/"))


def _oddity(draw: random.Random) -> Mishap:
    kind = draw.choices(("error", "botch", "stall", "omit", "throttle"), (4, 3, 2, 2, 1))[0]
    method, path = draw.choice({"error": CALLS, "throttle": CALLS, "omit": LISTS}.get(kind, CHANGES))
    told: dict[str, Any] = {"kind": kind, "method": method, "path": path, "times": draw.randint(1, 3)}
    match kind:
        case "error" | "botch":
            status = draw.choice([one for one in STATUSES if kind == "error" or one > 404])
            told |= {"status": status, "code": f"Unforeseen{draw.randint(1, 99)}", "message": "It is what it is."}
        case "stall":
            told["seconds"] = draw.choice((10, 60, 120))
        case "throttle":
            told |= {"times": 25, "seconds": draw.choice((1, 5, 10))}
    return Mishap(draw.choice((0, 0, draw.randint(1, 24))), "fault", told)


def _mishap(draw: random.Random) -> Mishap:
    step = draw.randint(1, 24)
    match draw.choices(("evict", "withdrawn", "allocation", "request", "kill"), (4, 1, 1, 2, 2))[0]:
        case "evict":
            return Mishap(step, "evict", {"notice_s": draw.choice((30, 8, 0))})
        case "withdrawn":
            return Mishap(step, "evict", {"notice_s": draw.choice((30, 8)), "withdrawn": True})
        case "allocation":
            return Mishap(0, "fault", {"kind": "allocation", "times": draw.randint(1, 2)})
        case "request":
            method, path = draw.choice(ASKS)
            kind = draw.choice(("throttle", "slow", "lose"))
            return Mishap(draw.choice((0, step)), "fault", {"kind": kind, "method": method, "path": path, "times": 2})
    return Mishap(step, "kill")


class Stage:
    """Runs with their scripts, on one twin and one server, which is killed where a script says so."""

    def __init__(self, shell: Shell, cloud: Cloud, scripts: Sequence[Script]) -> None:
        self._shell = shell
        self._cloud = cloud
        self._scripts = {one.name: one for one in scripts}
        self._waiting = {one.name: list(one.mishaps) for one in scripts}
        self._settings = from_environment(shell.environ)
        self._client = Client.connect(self._settings)
        self._runs: dict[str, Run] = {}
        self.story: list[str] = []

    def play(self) -> dict[str, Run]:
        """All runs at their end, with nothing more to happen to them."""
        for one in self._scripts.values():
            self._act(one.name, 0)
            self._submit(one)
        give_up = time.monotonic() + PATIENCE_S * (2 if self._cloud.hostile() else 1)
        while time.monotonic() < give_up:
            for name in self._scripts:
                self._look(name)
            if len(self._runs) == len(self._scripts) and not any(run.open for run in self._runs.values()):
                return self._runs
            time.sleep(0.2)
        late = [one for one in self._runs.values() if one.open]
        told = [f"{one.name} is {one.state}: {[str(each.state) for each in one.attempts]}" for one in late]
        raise AssertionError(f"not at their ends: {told}")

    def missed(self) -> list[str]:
        """What was to happen and did not, because its run was past it before anybody looked."""
        return [f"{name}: {one}" for name, waiting in self._waiting.items() for one in waiting if not self._moot(name)]

    def left(self) -> list[str]:
        """What the cloud still has, once it has had the time to delete."""
        give_up = time.monotonic() + 60
        while True:
            with suppress(StokerError):
                found = [one.key for one in Nodes(self._connected().connection).all()]
                if not found and self._cloud.empty():
                    return []
                if time.monotonic() > give_up:
                    return found or ["resources without a node"]
            time.sleep(0.2)

    def _moot(self, name: str) -> bool:
        """A run that was cancelled does not come to what was to happen later."""
        return self._scripts[name].sort == "cancelled" and not any(one.kind == "cancel" for one in self._waiting[name])

    def _submit(self, script: Script) -> None:
        folder = self._shell.folder / script.name
        folder.mkdir()
        text = {"good": TRAIN, "failing": FAILING, "cancelled": ENDLESS}[script.sort]
        self._shell.write(f"{script.name}/train.py", text)
        rests = " ".join(str(one.step) for one in script.mishaps)
        env = {"STEPS": str(STEPS), "STEP_S": str(STEP_S), "REST_AT": rests, "REST_S": str(REST_S)}
        job = Job(name="faults", run="python3 train.py", on="azure", spot=Spot(), env=env)
        self._connected().submit(job, folder, name=script.name)

    def _look(self, name: str) -> None:
        """How far a run is, and what happens to it there. A server that was just killed says nothing."""
        if name in self._runs and not self._runs[name].open:
            return
        try:
            run = self._client.run(name)
            self._runs[name] = run.facts
            steps = [point.step or 0 for point in run.metrics()[-1:]] if self._waiting[name] else []
        except StokerError:
            self._connected()
            return
        self._act(name, int(max(steps, default=0)))

    def _connected(self) -> Client:
        """To a server that lives: whoever asks next starts one, as for any command."""
        try:
            self._client.connection.get("/v1/health")
        except StokerError:
            self._client = Client.connect(self._settings)
        return self._client

    def _act(self, name: str, step: int) -> None:
        waiting = self._waiting[name]
        while waiting and waiting[0].step <= step:
            mishap = waiting[0]
            if not self._happens(name, mishap):
                return  # there is nothing yet for it to happen to
            waiting.pop(0)
            self.story.append(f"{name} at step {step}: {mishap.kind} {mishap.details}")

    def _happens(self, name: str, mishap: Mishap) -> bool:
        match mishap.kind:
            case "fault":
                self._cloud.ask("fault", **mishap.details)
            case "kill":
                self._shell.kill_server()
            case "cancel":
                self._client = self._connected()
                self._client.run(name).cancel()
            case "evict":
                run = self._runs[name]
                mine = [vm for vm in self._cloud.running() if f"-{run.id}-" in vm]
                if not mine:
                    return False
                with suppress(URLError):  # gone in this very moment
                    self._cloud.ask("evict", vm=mine[0], **mishap.details)
        return True


def wrong(script: Script, run: Run) -> str:
    """What is not as it should be; nothing where all is."""
    if run.state is not ENDS[script.sort]:
        return f"{run.name} is {run.state} ({run.reason}), expected {ENDS[script.sort]}"
    if script.sort == "failing" and run.exit_code != 3:
        return f"{run.name} has exit code {run.exit_code}, expected 3"
    if script.sort == "good":
        model = Path(run.landed, "model.txt")
        if not run.landed or model.read_text() != weights_after(STEPS):
            return f"{run.name} has other weights than an undisturbed training: {run.land_problem or model}"
    return ""

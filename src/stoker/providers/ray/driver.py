"""The driver of a Ray job: an actor on each node of the attempt, which starts its agent and tells of its end.

Sent as text, and run by the Python of the cluster's Ray: the standard library and Ray, and nothing of Stoker. What it
knows of the nodes it writes where Ray keeps the message of a job, so that one request shows that of all jobs.
"""

import hashlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import ray
from ray.experimental import internal_kv
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

EVERY_S = 0.2
LOOK_S = 2.0  # between looks at the nodes of the cluster, while it waits
QUIET_S = 1.0  # a cluster with room needs no words
LEAVE_S = 2.5  # Ray kills a driver 3 s after its SIGTERM
TOP = "~/.stoker-node"
SAID = "stoker: "  # in front of what the server reads
# What Ray sets for its workers, and a script that uses Ray itself must not find.
_RAYS = {
    "OMP_NUM_THREADS",
    "PYTHONBREAKPOINT",
    "PYTHONUNBUFFERED",
    "RAY_CLIENT_MODE",
    "RAY_JOB_CONFIG_JSON_ENV_VAR",
    "RAY_JOB_ID",
    "RAY_LD_PRELOAD_ON_WORKERS",
    "RAY_RAYLET_PID",
    "RAY_WORKER_NICENESS",
}


class RayKeeper:
    """The actor on a node. If its worker ends, however it does, the guard of the agent ends the agent."""

    def __init__(self) -> None:
        self._life = self._done = -1
        self._lock = threading.Lock()
        self._clean: list[str] = []

    def begin(self, node: "dict[str, Any]", address: str, guard: str, agent: bytes) -> None:
        """Raises what a person can act on."""
        _check_stores(node["stores"])
        top = Path(TOP).expanduser() / node["mark"]
        folder = top / "nodes" / node["key"]
        for one in (top, top / "agents", top / "environments", top / "nodes", folder):
            one.mkdir(parents=True, exist_ok=True, mode=0o700)
        settings = {
            "key": node["key"],
            "agent": str(_kept(top / "agents", agent)),
            "folder": str(folder),
            "options": [*node["options"], "--folder", str(folder), "--environments", str(top / "environments")],
            "variables": {**node["variables"], "RAY_ADDRESS": address},
        }
        self._clean = [
            sys.executable,
            "-I",
            "-S",
            settings["agent"],
            "end",
            "--folder",
            str(folder),
            "--key",
            node["key"],
        ]
        given = os.memfd_create("given")
        os.write(given, json.dumps(settings).encode())
        life, self._life = os.pipe()
        self._done, done = os.pipe()
        cleaned = ["env", *(word for name in sorted(_RAYS) for word in ("-u", name)), f"RAY_ADDRESS={address}"]
        words = [sys.executable, "-I", "-S", "-c", guard, str(life), str(done), str(given)]
        subprocess.run([*cleaned, *words], pass_fds=(life, done, given), stdin=subprocess.DEVNULL, check=True)
        for fd in (life, done, given):
            os.close(fd)

    def wait(self) -> str:
        """Until nothing of the agent is left: its exit code."""
        with os.fdopen(self._done) as done:
            said = done.read()
        if not said:  # somebody killed the guard
            subprocess.run(self._clean, stdin=subprocess.DEVNULL, check=False)
        return said

    def end(self) -> None:
        with self._lock:
            if self._life >= 0:
                os.close(self._life)
            self._life = -1


class RayNodes:
    """What is known of each: a state, words for people, and the code of an error."""

    def __init__(self, given: "dict[str, Any]") -> None:
        self._given = given
        self._known = {node["key"]: ["starting", "", ""] for node in given["nodes"]}
        self._told = ""

    def note(self, key: str, state: str, words: str = "", code: str = "") -> None:
        self._known[key] = [state, words[:500], code]

    def state(self, key: str) -> str:
        return self._known[key][0]

    def those(self, *states: str) -> "list[str]":
        return [key for key, (state, _, _) in self._known.items() if state in states]

    def tell(self) -> str:
        """As the message of the job: there is no race, because Ray itself writes it before and behind its driver."""
        said = SAID + json.dumps(self._known)
        if said != self._told:
            name = f"_ray_internal_job_info_{self._given['id']}"
            found = internal_kv._internal_kv_get(name, namespace="job")
            if found and (info := json.loads(found))["status"] == "RUNNING":
                internal_kv._internal_kv_put(name, json.dumps({**info, "message": said}), namespace="job")
            self._told = said
        return said


class RayDriver:
    def __init__(self, given: "dict[str, Any]", guard: str, agent: bytes) -> None:
        self._given, self._guard = given, guard
        self._agent = ray.put(agent)
        self._nodes = RayNodes(given)
        self._keepers: dict[str, Any] = {}
        self._begins: dict[Any, str] = {}
        self._waits: dict[Any, str] = {}
        self._ended: set[str] = set()  # nobody needs them any more
        self._leaving = False
        self._began = self._looked = time.monotonic()
        self._lacking: float | None = None  # since when the cluster has not had nodes of that size

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._leave)
        self._ask()
        while self._nodes.those("starting", "up") and not self._leaving:
            self._hear(EVERY_S)
            self._heed()
            self._explain()
            self._nodes.tell()
        if self._leaving:
            self._end(self._nodes.those("starting", "up"))
            until = time.monotonic() + LEAVE_S
            while self._nodes.those("starting", "up") and time.monotonic() < until:
                self._hear(EVERY_S)
        print(self._nodes.tell(), flush=True)  # noqa: T201  # the end of its log is what Ray keeps of a failed job
        return 1 if self._nodes.those("gone") else 0

    def _leave(self, *_: object) -> None:
        self._leaving = True

    def _ask(self) -> None:
        """Nodes of a gang are given all at once, each on a machine of its own."""
        nodes, bundle = self._given["nodes"], self._given["bundle"]
        self._group = placement_group([bundle] * len(nodes), strategy="STRICT_SPREAD")
        address = ray.get_runtime_context().gcs_address
        for number, node in enumerate(nodes):
            asked = ray.remote(RayKeeper).options(
                num_cpus=bundle.get("CPU", 0),
                num_gpus=bundle.get("GPU", 0),
                memory=bundle.get("memory"),
                resources={name: value for name, value in bundle.items() if name not in ("CPU", "GPU", "memory")},
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, number),
                max_concurrency=3,
            )
            keeper = asked.remote()
            self._keepers[node["key"]] = keeper
            self._begins[keeper.begin.remote(node, address, self._guard, self._agent)] = node["key"]

    def _hear(self, within_s: float) -> None:
        refs = [*self._begins, *self._waits]
        if not refs:
            time.sleep(within_s)
            return
        for ref in ray.wait(refs, num_returns=1, timeout=within_s)[0]:
            begun = ref in self._begins
            key = (self._begins if begun else self._waits).pop(ref)
            try:
                said = ray.get(ref)
            except Exception as error:
                self._lose(key, _words(error))
                continue
            if begun:
                self._nodes.note(key, "up")
                self._waits[self._keepers[key].wait.remote()] = key
            else:
                fine = said == "0" or key in self._ended
                self._lose(key, "" if fine else f"its agent ended with {said or 'no word'}")

    def _lose(self, key: str, words: str) -> None:
        self._nodes.note(key, "gone" if words else "released", words)
        ray.kill(self._keepers[key])

    def _heed(self) -> None:
        """The server leaves a mark for a node that nobody needs any more; the others stay."""
        if len(self._keepers) > 1:
            marked = [
                key
                for key in set(self._nodes.those("starting", "up")) - self._ended
                if internal_kv._internal_kv_exists(self._given["stops"] + key)
            ]
            self._end(marked)

    def _end(self, keys: "list[str]") -> None:
        for key in set(keys) - self._ended:
            self._ended.add(key)
            internal_kv._internal_kv_del(self._given["stops"] + key)
            if self._nodes.state(key) == "up":
                self._keepers[key].end.remote()
            else:
                ray.kill(self._keepers[key])
                self._nodes.note(key, "released")

    # Waiting

    def _explain(self) -> None:
        """Why nodes are not there yet. Only waiting for nodes that the cluster does not have has a limit."""
        now = time.monotonic()
        waiting = self._nodes.those("starting")
        if not waiting or now - self._began < QUIET_S or now - self._looked < LOOK_S:
            return
        self._looked = now
        if placement_group_table(self._group)["state"] == "CREATED":
            return
        bundle = self._given["bundle"]
        large = [one for one in ray.nodes() if one["Alive"] and _holds(one["Resources"], bundle)]
        wanted = len(self._given["nodes"])
        each = f"{wanted} {'node' if wanted == 1 else 'nodes'} with {_spelled(bundle)}"
        if len(large) >= wanted:
            self._lacking = None
            words = f"{each}: {len(large)} of the cluster's nodes are that large, and not enough of them are free"
        else:
            self._lacking = self._lacking or now
            words = f"{each}: the cluster has {len(large)}, and its autoscaler was asked for more"
        lost = self._lacking is not None and now - self._lacking > self._given["patience_s"]
        for key in waiting:
            if lost:
                self._nodes.note(key, "gone", f"no nodes for {self._given['patience_s']:.0f} s: {words}", "no-capacity")
                ray.kill(self._keepers[key])
            else:
                self._nodes.note(key, "starting", words)


def _check_stores(stores: "list[str]") -> None:
    for url in stores:
        place = unquote(urlsplit(url).path)
        if not Path(place).is_dir():
            raise FileNotFoundError(f"the folder of the store, {place}, is not on {socket.gethostname()}: share it")


def _kept(folder: Path, agent: bytes) -> Path:
    place = folder / f"agent-{hashlib.sha256(agent).hexdigest()[:16]}.pyz"
    if not place.exists():
        fd, part = tempfile.mkstemp(dir=folder)
        with os.fdopen(fd, "wb") as file:
            file.write(agent)
        Path(part).replace(place)
    return place


def _holds(has: "dict[str, float]", bundle: "dict[str, float]") -> bool:
    return all(has.get(name, 0) >= amount for name, amount in bundle.items())


def _spelled(bundle: "dict[str, float]") -> str:
    return ", ".join(
        f"{amount / 1e9:g} GB" if name == "memory" else f"{amount:g} {name}" for name, amount in bundle.items()
    )


def _words(error: Exception) -> str:
    """Ray's own, without the traceback that it puts around an exception of ours."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return str(cause)
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())


def main(sent: bytes) -> int:
    with zipfile.ZipFile(io.BytesIO(sent)) as packed:
        given = json.loads(packed.read("given.json"))
        return RayDriver(given, packed.read("guard.py").decode(), packed.read("agent.pyz")).run()


if __name__ == "__main__":
    sys.exit(main(sent))  # type: ignore[name-defined]  # noqa: F821  # the job's command line has read it, see `wanted.py`

"""The phases before the script: unpacks its code and checkpoint, stages its data, and prepares its environment."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.reporting import EffortMeter, Reporter
from stoker.agent.checkpoints.commits import Checkpoints
from stoker.agent.checkpoints.restoring import Wanted, restore
from stoker.agent.checkpoints.resuming import carry_over
from stoker.agent.environment.python import interpreter
from stoker.agent.machine import readiness
from stoker.agent.machine.machine import NodeFolder, NodeMachine, remove_tree
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes import launch
from stoker.agent.processes.launch import Workplace
from stoker.agent.shipping.shipping import Shipping
from stoker.agent.shipping.worker import persist
from stoker.model.job.commandline import NUMBER
from stoker.model.job.job import Environment
from stoker.model.job.sections import CheckpointPaths
from stoker.model.orders import Orders
from stoker.model.run.report import Phase
from stoker.model.snapshot import CheckpointSet
from stoker.model.workspace import layout
from stoker.stores import Store
from stoker.stores.trees.unpack import unpack, verified

if TYPE_CHECKING:
    from stoker.agent.container.container import NodeContainer
    from stoker.agent.data.staging import Staging


@dataclass(frozen=True, slots=True)
class Unpacked:
    code: frozenset[str]  # paths of the code snapshot
    newest: str = ""  # of the restored checkpoints, in the working directory; empty: the script gets no path


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpack:
    store: Store
    folder: NodeFolder
    checkpoints: Checkpoints
    shipping: Shipping
    effort: EffortMeter
    stopping: Stopping
    tell: Callable[[str, str], None]

    def __call__(self, orders: Orders) -> Unpacked:
        """Raises Stopped, and errors of the store and the disk. Waits while the store is unavailable."""
        code = persist(lambda: self._code(orders), self.stopping.check)
        job = orders.job
        if job.create_folders:
            for name in (job.outputs, *CheckpointPaths(job.checkpoints).folders):
                (self.folder.work / name).mkdir(parents=True, exist_ok=True)
        found = self._restore(orders)
        newest = self._newest(found, orders) if found and job.resume else ""
        self.stopping.check()
        return Unpacked(code, newest)

    def _code(self, orders: Orders) -> frozenset[str]:
        """Into an empty folder: files of an earlier try are removed."""
        remove_tree(self.folder.work)
        id = orders.snapshot
        route = self.store.route(layout.code(id))
        if route and route.one:  # over a network it is one object, with its own token
            from stoker.stores.trees.blobstream import Bundle  # here, because most stores are local

            bundle = Bundle(self.store, id)
            unpack(bundle, bundle.snapshot, self.folder.work)
            snapshot = bundle.snapshot
        else:
            snapshot = verified(self.store.get(layout.snapshot(id)), id)
            unpack(self.store, snapshot, self.folder.work)
        return frozenset(entry.path for entry in snapshot.entries)

    def again(self, orders: Orders, wanted: Wanted | None) -> str:
        """Restores this checkpoint, or one without a later label than this, in place of the one that was restored;
        None: none at all. Returns what the script is told to resume from."""
        found = self._restore(orders, -math.inf if wanted is None else wanted)
        return self._newest(found, orders) if found and orders.job.resume else ""

    def _restore(self, orders: Orders, until: Wanted = math.inf) -> CheckpointSet | None:
        begun = time.monotonic()
        found = restore(self.store, orders, self.folder, self.tell, until)
        self.checkpoints.begin_from(found)
        if found:
            carried = persist(lambda: carry_over(self.store, orders, self.folder, self.tell), self.stopping.check)
            self.shipping.begin_from(carried)
        self.effort.restored(found, time.monotonic() - begun)
        return found

    def _newest(self, found: CheckpointSet, orders: Orders) -> str:
        """The path that the script should resume from; empty: none."""
        from stoker.agent.checkpoints.resuming import newest  # here, because most scripts find it themselves

        numbered = f"${{{NUMBER}}}" in (orders.job.resume or "")
        path = newest(found, CheckpointPaths(orders.job.checkpoints), self.folder.work, numbered=numbered)
        if path:
            self.tell("resume", f"telling the script to resume from `{path}`")
        return path


class Inputs:
    """The data of a run on its node; empty until it is staged, and for most runs always."""

    def __init__(
        self, store: Store, machine: NodeMachine, stopping: Stopping, tell: Callable[[str, str], None]
    ) -> None:
        self._store = store
        self._machine = machine
        self._stopping = stopping
        self._tell = tell
        self._data: Staging | None = None

    def stage(self, orders: Orders) -> Mapping[str, str]:
        """Where each input is, by name. Raises what staging raises."""
        from stoker.agent.data.staging import at_node  # here, because it is slow to import and most runs do without

        self._data = at_node(self._store, orders, self._machine, self._stopping, self._tell)
        self._machine.folder.data.symlink_to(self._data.folder)
        return self._data.stage()

    @property
    def helpers(self) -> set[int]:
        """Processes that serve the data, which do not belong to the script."""
        return self._data.helpers if self._data else set()

    def watch(self, pids: Callable[[], set[int]]) -> None:
        """The script is running."""
        if self._data:
            self._data.watch(pids)

    def finish(self) -> None:
        """The script has ended."""
        if self._data:
            self._data.finish()

    def release(self) -> None:
        """Unmounts and releases everything."""
        if self._data:
            self._data.release()
            self._machine.folder.data.unlink(missing_ok=True)

    def waited_s(self) -> float:
        """How long the script has waited for its data since its start. A moment in which it waits for several inputs
        counts once."""
        figures = self._data.figures().values() if self._data else ()
        return max((one.wait_s - one.stage_s for one in figures), default=0.0)

    def said(self) -> dict[str, Any]:
        """The data figures of a report."""
        return {"data": self._data.figures()} if self._data else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    inputs: Inputs
    reporter: Reporter
    begin_figures: Callable[[], None]
    stopping: Stopping

    def __call__(self, orders: Orders) -> Orders:
        """The orders with the paths of the data."""
        if not orders.inputs:
            return orders
        self.reporter.say(phase=Phase.STAGING)
        self.begin_figures()
        places = launch.chosen(orders.job, self.inputs.stage(orders))
        self.stopping.check()
        return replace(orders, data={**orders.data, **places})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    store: Store
    machine: NodeMachine
    shipping: Shipping
    reporter: Reporter
    stopping: Stopping
    tell: Callable[[str, str], None]
    container: NodeContainer | None = None  # for the ranks of a job that wants one

    def __call__(self, orders: Orders, newest: str = "", code: frozenset[str] = frozenset()) -> Workplace:
        """Where the ranks run. `newest` is the checkpoint that the script should resume from, `code` the paths of the
        code snapshot. Raises Stopped and Broken."""
        from stoker.agent.environment.system import system_of  # here, with all that comes after unpacking

        self.reporter.say(phase=Phase.PREPARING, system=system_of(self.machine.processes))
        folder, environ, library = self.machine.folder, self.machine.variables, self.machine.library
        processes = self._processes(orders)
        self.shipping.start_log(orders.node * processes)
        if self.container:
            return self._contained(orders, self.container, newest, code)
        python, imports = self._environment(orders, folder.log(orders.node * processes))
        found = interpreter(python, folder, environ.get("PATH", ""))
        self.stopping.check()
        port, *ports = launch.free_ports(orders, processes)
        workers = tuple(f"{orders.master_address}:{one}" for one in ports)
        place = Workplace(folder, python, found.bin, found.venv, imports, library, environ, processes, port, newest)
        return replace(place, workers=workers)

    def _contained(self, orders: Orders, container: NodeContainer, newest: str, code: frozenset[str]) -> Workplace:
        from stoker.agent.environment.building import Workshop  # here, because most runs have no container
        from stoker.agent.environment.shelf import Shelf

        machine, processes = self.machine, self._processes(orders)
        log = machine.folder.log(orders.node * processes)
        shelf = Shelf(self.store, orders.shelf, orders.key, self.stopping, self.tell) if orders.shelf else None

        def workshop(variables: Mapping[str, str]) -> Workshop:
            return Workshop(
                folder=machine.folder,
                environments=machine.environments,
                uv=None,
                variables=variables,
                key=orders.key,
                log=log,
                stopping=self.stopping,
                tell=self.tell,
                shelf=shelf,
            )

        container.start(orders, code, workshop)
        self.reporter.say(image=container.image, environment=container.environment, packages=container.packages)
        port, *ports = launch.free_ports(orders, processes)
        return Workplace(
            folder=machine.folder,
            python=container.python,
            bin="",
            venv="",
            imports="",
            library=machine.library,
            variables=container.variables(orders.job),
            processes=processes,
            port=port,
            newest=newest,
            workers=tuple(f"{orders.master_address}:{one}" for one in ports),
            entry=container.entry(orders),
        )

    def await_ready(self, orders: Orders) -> None:
        """A cloud VM may still be setting itself up long after its agent has started. Raises Stopped."""
        if self.machine.ready_s:
            from stoker.agent.machine import readiness  # here, because local nodes are always ready

            readiness.await_ready(orders.job, self.machine, self.stopping, self.tell)

    def _processes(self, orders: Orders) -> int:
        wanted = orders.job.processes
        if wanted != "gpus":
            return wanted
        found = readiness.count_gpus({**self.machine.variables, **orders.job.env})
        if not found:
            self.tell("gpus", "`processes: gpus` found no GPU on this node: starting one process")
        return found or 1

    def _environment(self, orders: Orders, log: Path) -> tuple[str, str]:
        """The Python to use, and an additional folder to import from."""
        if orders.job.environment == Environment() and orders.software is None:
            return orders.python or sys.executable, ""
        from stoker.agent.environment import building  # here, because it is slow to import and most runs do not need it

        found = building.prepare(orders, self.machine, log, self.stopping, self.tell, self.store)
        self.reporter.say(packages=building.packages(found.python), environment=found.environment)
        return found.python, found.imports

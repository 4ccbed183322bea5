"""The third phase: finds or builds the environment, counts the ranks, and waits until the machine is ready."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.agent.attempt.reporting import Reporter
from stoker.agent.environment.python import interpreter
from stoker.agent.machine import hardware
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes import launch
from stoker.agent.processes.launch import Workplace
from stoker.agent.shipping.shipping import Shipping
from stoker.model.job.job import Environment
from stoker.model.node.orders import Orders
from stoker.model.run.report import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    machine: NodeMachine
    shipping: Shipping
    reporter: Reporter
    stopping: Stopping
    tell: Callable[[str, str], None]

    def __call__(self, orders: Orders, newest: str = "") -> Workplace:
        """Where the ranks run. `newest` is the checkpoint that the script should resume from. Raises Stopped and
        Broken."""
        self.reporter.say(phase=Phase.PREPARING)
        folder, environ, library = self.machine.folder, self.machine.variables, self.machine.library
        processes = self._processes(orders)
        self.shipping.start_log(orders.node * processes)
        python, imports = self._environment(orders, folder.log(orders.node * processes))
        found = interpreter(python, folder, environ.get("PATH", ""))
        self.stopping.check()
        port, *ports = launch.free_ports(orders, processes)
        workers = tuple(f"{orders.master_address}:{one}" for one in ports)
        place = Workplace(folder, python, found.bin, found.venv, imports, library, environ, processes, port, newest)
        return replace(place, workers=workers)

    def await_ready(self, orders: Orders) -> None:
        """A cloud VM may still be setting itself up long after its agent has started. Raises Stopped."""
        if self.machine.ready_s:
            from stoker.agent.machine import readiness  # here, because local nodes are always ready

            readiness.await_ready(orders.job, self.machine, self.stopping, self.tell)

    def _processes(self, orders: Orders) -> int:
        wanted = orders.job.processes
        if wanted != "gpus":
            return wanted
        found = hardware.count_gpus({**self.machine.variables, **orders.job.env})
        if not found:
            self.tell("gpus", "`processes: gpus` found no GPU on this node: starting one process")
        return found or 1

    def _environment(self, orders: Orders, log: Path) -> tuple[str, str]:
        """The Python to use, and an additional folder to import from."""
        if orders.job.environment == Environment() and orders.software is None:
            return orders.python or sys.executable, ""
        from stoker.agent.environment import (
            preparing,  # here, because it is slow to import and most runs do not need it
        )

        python, imports = preparing.prepare(orders, self.machine, log, self.stopping, self.tell)
        self.reporter.say(packages=preparing.packages(python))
        return python, imports

"""The second phase: downloads or mounts the data of the run, and passes its paths to the script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.reporting import Reporter
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes import launch
from stoker.model.node.orders import Orders
from stoker.model.run.report import Phase
from stoker.stores import Store

if TYPE_CHECKING:
    from stoker.agent.data.staging import Staging


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

"""The second phase: brings the data that is not on this machine, and has the script told where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stoker.agent.attempt.reporting import Reporter
from stoker.agent.machine.machine import Machine
from stoker.agent.notice.stopping import Stopping
from stoker.agent.processes import launch
from stoker.model.node.orders import Orders
from stoker.model.run.report import Phase
from stoker.stores import Store

if TYPE_CHECKING:
    from stoker.agent.data.staging import Staging


class Inputs:
    """The data of a run on its node; none until it is staged, and for most runs at all."""

    def __init__(self, store: Store, machine: Machine, stopping: Stopping, tell: Callable[[str, str], None]) -> None:
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
        """Processes that serve the data, and are none of the script's."""
        return self._data.helpers if self._data else set()

    def watch(self, pids: Callable[[], set[int]]) -> None:
        """The script runs."""
        if self._data:
            self._data.watch(pids)

    def finish(self) -> None:
        """The script has ended."""
        if self._data:
            self._data.finish()

    def release(self) -> None:
        """Nothing is mounted or held any more."""
        if self._data:
            self._data.release()
            self._machine.folder.data.unlink(missing_ok=True)

    def waited_s(self) -> float:
        """For its data, since the script started. Inputs share the moments in which it waited for any of them."""
        figures = self._data.figures().values() if self._data else ()
        return max((one.wait_s - one.stage_s for one in figures), default=0.0)

    def said(self) -> dict[str, Any]:
        """What a report says of it."""
        return {"data": self._data.figures()} if self._data else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    inputs: Inputs
    reporter: Reporter
    begin_figures: Callable[[], None]
    stopping: Stopping

    def __call__(self, orders: Orders) -> Orders:
        """The orders with the places of the data in them."""
        if not orders.inputs:
            return orders
        self.reporter.say(phase=Phase.STAGING)
        self.begin_figures()
        places = launch.chosen(orders.job, self.inputs.stage(orders))
        self.stopping.check()
        return replace(orders, data={**orders.data, **places})

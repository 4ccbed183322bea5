"""The fifth phase: everything that the script left goes into the store, however it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stoker.agent import stray
from stoker.agent.attempt.run import Script
from stoker.agent.endings import Ending, broken
from stoker.agent.keeper import Keeper
from stoker.agent.masking import Masking
from stoker.agent.nodefolder import NodeFolder
from stoker.agent.noticing import Noticing
from stoker.agent.pace import persist
from stoker.agent.ranks import Ranks
from stoker.agent.reporting import Reporter
from stoker.agent.shipping import Shipping
from stoker.model.orders import Orders
from stoker.stores import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Ship:
    store: Store
    folder: NodeFolder
    ranks: Ranks
    keeper: Keeper
    noticing: Noticing
    shipping: Shipping
    reporter: Reporter
    masking: Masking
    script: Script
    tell: Callable[[str, str], None]

    def __call__(self, orders: Orders, ending: Ending) -> Ending:
        """The ending, or what kept this from being done. Returns when everything is in the store."""
        for step in (self.ranks.sweep, self.keeper.finish, self.noticing.conclude, *self.shipping.steps()):
            try:
                step()
            except Exception as error:  # the others are carried out all the same
                ending = broken(error)
        if self.script.started_ns and ending.outcome in stray.ENDS:
            try:
                self._stray(orders)
            except Exception as error:
                ending = broken(error)
        return ending

    def _stray(self, orders: Orders) -> None:
        found = stray.find(self.folder.work, orders, self.script.code, self.script.started_ns)
        told = persist(lambda: stray.ship(self.store, orders, found))
        if told.names:
            names = tuple(self.masking.text(name) for name in told.names)
            self.reporter.say(stray=names, stray_files=told.files, stray_bytes=told.size_bytes)
            self.tell("stray", f"the script left files outside its outputs: {', '.join(names)}")

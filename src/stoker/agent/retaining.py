"""Which of a run's sets stay in the store: those that retention asks for, and the contents they need."""

from __future__ import annotations

from stoker.agent.contents import Contents
from stoker.agent.restoring import is_fenced, positions, read_fences, read_set
from stoker.errors import AlreadyThere, Corrupt, Missing
from stoker.model import layout
from stoker.model.checkpoint import CheckpointSet, Position, retained, visible
from stoker.model.orders import Orders
from stoker.stores import Store


class Retaining:
    """For one thread. Once an attempt has fenced off the earlier ones, what they left is its to remove."""

    def __init__(self, store: Store, orders: Orders, contents: Contents) -> None:
        self._store = store
        self._orders = orders
        self._contents = contents
        self._sets: list[CheckpointSet] = []
        self._hidden: list[Position] = []
        self._known = orders.begins  # there is nothing yet

    def take_stock(self) -> None:
        """What earlier attempts left: asked once, and late, when those that were fenced off have stopped."""
        if self._known:
            return
        run_id = self._orders.run_id
        there = positions(self._store, self._orders)
        shown = visible(there, read_fences(self._store, self._orders))
        sets = []
        for position in shown:
            try:
                sets.append(read_set(self._store, self._orders, position))
            except (Missing, Corrupt):
                continue  # whoever tries to put it back will say so
        stored = self._store.list(layout.checkpoint_files(run_id, self._orders.node))
        self._contents.adopt(sha256 for one in stored if (sha256 := layout.checkpoint_content(one.key)))
        self._sets, self._hidden = sets, [one for one in there if one not in shown]
        self._known = True

    def doubt(self, position: Position) -> None:
        """A set is about to be written. As long as nobody says that it was, it does not count."""
        self._hidden.append(position)

    def add(self, made: CheckpointSet) -> None:
        self._hidden.remove(made.position)
        self._sets.append(made)

    def tidy(self) -> None:
        """May fail and be called again. First the sets, then what only they had: a set that is there is whole.

        Raises AlreadyThere where a later attempt has taken over: then nothing is this one's to remove.
        """
        rules, run_id = self._orders.job.retention, self._orders.run_id
        kept = retained(self._sets, rules.keep, rules.best or "")
        if is_fenced(self._store, self._orders):
            raise AlreadyThere("a later attempt has taken over")
        for position in [*self._hidden, *(one.position for one in self._sets if one.position not in kept)]:
            self._store.delete(layout.checkpoint_set(run_id, *position, self._orders.node))
        self._hidden = []
        self._sets = [one for one in self._sets if one.position in kept]
        self._contents.forget({entry.sha256 for one in self._sets for entry in one.entries}, 0.0)

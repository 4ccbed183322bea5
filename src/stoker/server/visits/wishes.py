"""The commands that people run on nodes now: each is wished for as long as somebody listens to what it says."""

from __future__ import annotations

from collections.abc import Callable

from stoker.model.node.orders import Visit


class Visits:
    """In memory: a visit ends with the server that let it in. `told` is called when agents have to hear of a change."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self.told = told
        self._open: dict[str, dict[str, Visit]] = {}  # by node key, by id

    def begin(self, node_key: str, visit: Visit) -> None:
        self._open.setdefault(node_key, {})[visit.id] = visit
        self.told()

    def of(self, node_key: str) -> tuple[Visit, ...]:
        return tuple(self._open.get(node_key, {}).values())

    def end(self, node_key: str, id: str) -> None:
        """Twice is fine."""
        visits = self._open.get(node_key, {})
        if visits.pop(id, None):
            self.told()
        if not visits:
            self._open.pop(node_key, None)

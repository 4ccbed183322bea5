"""The current commands on nodes: each is requested as long as somebody follows its output."""

from __future__ import annotations

from collections.abc import Callable

from stoker.model.node.orders import Visit


class Visits:
    """In memory: a visit ends with its server. `told` is called when agents must be informed of a change."""

    def __init__(self, told: Callable[[], None] = lambda: None) -> None:
        self.told = told
        self._open: dict[str, dict[str, Visit]] = {}  # by node key, by id

    def begin(self, node_key: str, visit: Visit) -> None:
        self._open.setdefault(node_key, {})[visit.id] = visit
        self.told()

    def of(self, node_key: str) -> tuple[Visit, ...]:
        return tuple(self._open.get(node_key, {}).values())

    def end(self, node_key: str, id: str) -> None:
        """Calling it twice is fine."""
        visits = self._open.get(node_key, {})
        if visits.pop(id, None):
            self.told()
        if not visits:
            self._open.pop(node_key, None)

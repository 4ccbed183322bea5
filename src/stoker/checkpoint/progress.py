"""How far a training is: everything a checkpoint holds besides the parts that the script names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.checkpoint import randomness
from stoker.checkpoint.buckets import Buckets
from stoker.checkpoint.position import Position
from stoker.checkpoint.reading import OpenedPart


class Progress:
    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets
        self.steps = 0
        self.values: dict[str, Any] = {}  # the script's own
        self.metrics: dict[str, float] = {}
        self.position = Position()
        self._random: Mapping[str, Any] | None = None  # to be put back when the loop is where it was

    def take(self) -> dict[str, Any]:
        """As it is now, but for the values. What is returned does not change any more, and is yet to be packed."""
        return {
            "steps": self.steps,
            "metrics": dict(self.metrics),
            "position": self.position.state(),
            "random": randomness.take(),
            "buckets": self._buckets.state(),
        }

    @staticmethod
    def pack(taken: Mapping[str, Any]) -> dict[str, Any]:
        """In any thread: what is put back later."""
        return {**taken, "random": randomness.pack(taken["random"])}

    def put_back(self, stored: OpenedPart, *, exact: bool) -> None:
        """Unless `exact`, it is another rank's: the epoch that was interrupted begins anew."""
        form = stored.form
        self.steps = form["steps"]
        self.values, self.metrics = stored.value(form["values"]), stored.value(form["metrics"])
        position = stored.value(form["position"])
        if exact:
            self.position.put_back(position)
            self._random = stored.value(form["random"])
            randomness.put_back(self._random or {})
        else:
            self.position.epoch = position["epoch"]

    def put_random_back(self, *, finally_: bool = True) -> None:
        """The random states once more: the script may have drawn since they were put back when it started."""
        if self._random is not None:
            randomness.put_back(self._random)
        if finally_:
            self._random = None

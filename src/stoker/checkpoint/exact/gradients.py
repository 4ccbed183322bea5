"""In which order ranks add up their gradients, carried over a restart."""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections import Counter
from typing import Any

from stoker.checkpoint.buckets import Buckets, Record, rearrange
from stoker.checkpoint.exact import sidecar
from stoker.checkpoint.exact.ranks import group, group_store


class Gradients:
    """DistributedDataParallel changes the order after its first step, and a process that resumes continues with the one
    that was. The first rank of a wrapper decides for all, whoever of them has loaded a file."""

    def __init__(self) -> None:
        self._wrappers: list[weakref.ref[Any]] = []
        self._fresh: weakref.WeakSet[Any] = weakref.WeakSet()  # have not been called
        self._called: Counter[str] = Counter()  # wrappers so far, by their group and name
        self.loaded: dict[str, Record] = {}  # each for one wrapper: one that is made later starts as any other

    def add(self, wrapper: Any) -> None:
        self._wrappers = [one for one in self._wrappers if one() is not None] + [weakref.ref(wrapper)]
        self._fresh.add(wrapper)

    def records(self) -> dict[str, Record]:
        """Does not wait for other ranks."""
        return self._buckets().state() if self._wrappers else {}

    def before_call(self, wrapper: Any) -> None:
        """Before the first one, it waits for the first rank."""
        store = group_store()
        if store is None or wrapper not in self._fresh:
            return
        self._fresh.discard(wrapper)
        name = next(name for name, one in self._buckets().named().items() if one is wrapper)
        ranks = sys.modules["torch.distributed"].get_process_group_ranks(wrapper.process_group)
        which = hashlib.sha256(repr((ranks, name)).encode()).hexdigest()
        key = f"stoker-exact/buckets/{which}/{self._called[which]}"
        self._called[which] += 1
        if ranks[0] == group()[0]:
            store.set(key, sidecar.as_text({"record": self.loaded.pop(name, None)}))
        if record := sidecar.read_text(store.get(key))["record"]:
            rearrange(wrapper, record)

    def _buckets(self) -> Buckets:
        alive = {str(number): made for number, one in enumerate(self._wrappers) if (made := one()) is not None}
        return Buckets(alive, "same-placement")

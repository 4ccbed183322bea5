"""One pass over a loader, from any batch on, in the very order it had, by however many ranks."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from stoker.checkpoint.state import randomness


@dataclass(frozen=True, slots=True)
class Seats:
    """The seats of one rank. `whole` is the number of seats of all ranks."""

    whole: int = 1
    world: int = 1
    rank: int = 0

    @property
    def mine(self) -> tuple[int, ...]:
        return tuple(range(self.rank, self.whole, self.world))

    @property
    def shared(self) -> bool:
        """There are fewer ranks than seats."""
        return self.whole > self.world


ALONE = Seats()


def seated(whole: int | None, world: int, rank: int) -> Seats:
    """`whole`: None: the number of ranks never changes. There is a seat for every rank."""
    return Seats(max(whole or world, world), world, rank)


def splits(loader: Any, seats: Seats) -> bool:
    """Its samples are split between these ranks by a sampler that can do so for any number of them."""
    inner = _batch_sampler(loader)
    return inner is not None and (inner.sampler.num_replicas, inner.sampler.rank) == (seats.world, seats.rank)


def batches(loader: Any, seats: Seats) -> list[list[Any]]:
    """By step: for each seat of this rank the indices of its batch."""
    inner = _batch_sampler(loader)
    orders = [list(_for_seat(inner, seat, seats.whole)) for seat in seats.mine]
    return [list(step) for step in zip(*orders, strict=True)]


def _batch_sampler(loader: Any) -> Any:
    """None where it is not known how its samples are split."""
    data = sys.modules.get("torch.utils.data")
    inner = getattr(loader, "batch_sampler", None)
    if data is None or inner is None or isinstance(loader.dataset, data.IterableDataset):
        return None
    return inner if isinstance(getattr(inner, "sampler", None), data.DistributedSampler) else None


def _for_seat(inner: Any, seat: int, whole: int) -> Any:
    """The same batch sampler for another rank of another number of ranks."""
    sampler = copy.copy(inner.sampler)
    size = len(sampler.dataset)
    rounded = size - size % whole if sampler.drop_last else size
    sampler.num_replicas, sampler.rank = whole, seat
    sampler.num_samples = math.ceil(rounded / whole)
    sampler.total_size = sampler.num_samples * whole
    batch_sampler = copy.copy(inner)
    batch_sampler.sampler = sampler
    return batch_sampler


State = dict[str, Any]


class BatchSource:
    """A loader as a checkpoint sees it, over all passes: its generators, and its workers where they stay alive."""

    def __init__(self, loader: Any, seats: Seats = ALONE) -> None:
        self.loader = loader
        self.one_by_one = False  # the batches of several seats; otherwise they are one batch
        self._seats = seats
        self.workers: dict[int, State] = {}
        self._view: Any = None
        self._inherited = False  # `workers` are of another process, and ours are yet to be started

    @property
    def in_torch(self) -> bool:
        data = sys.modules.get("torch.utils.data")
        return data is not None and isinstance(self.loader, data.DataLoader)

    @property
    def stateful(self) -> bool:
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")

    @property
    def indexed(self) -> bool:
        """Whether batches can be left out without loading them."""
        data = sys.modules.get("torch.utils.data")
        return self.in_torch and data is not None and not isinstance(self.loader.dataset, data.IterableDataset)

    @property
    def lasting(self) -> bool:
        return self.in_torch and self.loader.num_workers > 0 and self.loader.persistent_workers

    @property
    def remembers(self) -> bool:
        """Whether there is something to save between passes."""
        return self.lasting or bool(self._generators())

    @property
    def split(self) -> State | None:
        """How its samples are split; None: only as many ranks as now can read the rest."""
        if self.stateful or not splits(self.loader, self._seats):
            return None
        return {"seats": self._seats.whole, "batch_size": getattr(self.loader.batch_sampler, "batch_size", 0)}

    @property
    def shared(self) -> bool:
        """This rank, or another one, reads for several."""
        return self._seats.shared and self.split is not None

    @property
    def in_turn(self) -> int:
        """How many batches make one step."""
        return len(self._seats.mine) if self.shared and self.one_by_one else 1

    @property
    def loss_scale(self) -> float:
        """With the mean over ranks, every sample of the step counts the same."""
        read = 1 if self.one_by_one else len(self._seats.mine)
        return read * self._seats.world / self._seats.whole if self.shared else 1.0

    def state(self) -> State:
        state: State = {"generators": self.generators(), "workers": dict(self.workers)}
        if self.stateful:
            state["loader"] = self.loader.state_dict()
        return state

    def restore(self, state: State) -> None:
        self.set_generators(state["generators"])
        self.workers = dict(state["workers"])
        self._inherited = bool(self.workers)
        if self.stateful and "loader" in state:
            self.loader.load_state_dict(state["loader"])

    def generators(self) -> list[bytes]:
        return [randomness.as_bytes(one.get_state()) for one in self._generators()]

    def set_generators(self, states: list[bytes]) -> None:
        for generator, held in zip(self._generators(), states, strict=False):
            generator.set_state(randomness.as_tensor(held))

    def begin(self) -> State:
        """Notes the random states from which the order of the next pass is drawn."""
        samplers = [sampler for sampler in self._samplers() if hasattr(sampler, "load_state_dict")]
        return {
            "random": randomness.capture(),
            "generators": self.generators(),
            "samplers": [sampler.state_dict() for sampler in samplers],
        }

    def iterate(self) -> Iterator[Any]:
        """A pass from its beginning."""
        if not self.lasting:
            self.workers = {}
        return self._iterator(0, resumed=False)

    def go_on(self, begun: State, skip: int) -> Iterator[Any]:
        """A pass that another process began, behind the first `skip` steps. The process's own random states are left
        anywhere; those of the loader are right."""
        now = self.generators()
        randomness.restore(begun["random"])
        self.set_generators(begun["generators"])
        samplers = [sampler for sampler in self._samplers() if hasattr(sampler, "load_state_dict")]
        for sampler, held in zip(samplers, begun["samplers"], strict=False):
            sampler.load_state_dict(held)
        iterator = self._iterator(skip * self.in_turn, resumed=True)
        self.set_generators(now)
        return iterator

    def _iterator(self, skip: int, *, resumed: bool) -> Iterator[Any]:
        if self.stateful:
            return iter(self.loader)
        if not self.indexed or (skip and not self._batched and self.loader.num_workers):
            return _without(iter(self.loader), skip)
        view = self._prepared_view()
        # Worker w is given every batch whose number leaves the remainder w; empty ones keep that so from the middle on.
        empty = skip % self.loader.num_workers if self.loader.num_workers else 0
        (view.batch_sampler if self._batched else view.sampler).batches = self._order(skip, empty)
        if self.loader.num_workers == 0:
            return iter(view)
        view.worker_init_fn = _WorkerStart(self.loader.worker_init_fn, dict(self.workers) if self._inherited else {})
        return self._named(view, skip, empty, resumed=resumed)

    def _named(self, view: Any, skip: int, empty: int, *, resumed: bool) -> Iterator[Any]:
        before = (randomness.capture(), self.generators()) if self._inherited and self.lasting and not resumed else None
        iterator = iter(view)
        if before is not None:  # workers that had stayed alive would have drawn no new seed
            randomness.restore(before[0])
            self.set_generators(before[1])
        self._inherited = False
        return self._carried(iterator, skip - empty, empty)

    def _carried(self, iterator: Iterator[Any], first: int, empty: int) -> Iterator[Any]:
        for number, (batch, state) in enumerate(iterator, start=first):
            if number - first < empty:
                continue
            self.workers[number % self.loader.num_workers] = state
            yield batch

    def take_over(self, skip: int) -> Iterator[Any]:
        """A pass that another number of ranks began, behind the first `skip` steps."""
        self.workers = {}
        return self._iterator(skip * self.in_turn, resumed=False)

    def _order(self, skip: int, empty: int) -> Any:
        if self.shared:
            steps = batches(self.loader, self._seats)
            merged = [[index for batch in step for index in batch] for step in steps]
            order = [batch for step in steps for batch in step] if self.one_by_one else merged
            return [[]] * empty + order[skip:]
        inner = self.loader.batch_sampler if self._batched else self.loader.sampler
        try:
            len(inner)
        except TypeError:  # endless: its indices are drawn when they are needed
            return islice(iter(inner), skip, None)
        return [[]] * empty + list(inner)[skip:]

    @property
    def _batched(self) -> bool:
        return self.loader.batch_sampler is not None

    def _prepared_view(self) -> Any:
        """The loader with an order that we set. A copy, because the script's own is left as it is."""
        if self._view is None:
            view = copy.copy(self.loader)
            held = view.__dict__  # a loader refuses to have its sampler set
            held["_iterator"] = None
            held["batch_sampler" if self._batched else "sampler"] = _Order()
            if self.loader.num_workers:
                held["collate_fn"] = _Carry(self.loader.collate_fn)
            self._view = view
        return self._view

    def _samplers(self) -> list[Any]:
        if not self.in_torch:
            return []
        found = [self.loader.sampler, self.loader.batch_sampler, getattr(self.loader.batch_sampler, "sampler", None)]
        return [one for place, one in enumerate(found) if one is not None and all(one is not o for o in found[:place])]

    def _generators(self) -> list[Any]:
        if not self.in_torch:
            return []
        torch = sys.modules["torch"]
        found: list[Any] = []
        for holder in (self.loader, *self._samplers()):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator) and all(generator is not one for one in found):
                found.append(generator)
        return found


class _Order:
    """Replaces a sampler: yields the given indices."""

    batches: Any = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Carry:
    """In a worker: puts the batch together as before, and sends the worker's random state along."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[Any, State | None]:
        if isinstance(samples, list) and not samples:
            return None, None
        return self._collate(samples), randomness.capture()


class _WorkerStart:
    """In a worker: starts it as before, then gives it the random state to resume with."""

    def __init__(self, start: Callable[[int], Any] | None, states: dict[int, State]) -> None:
        self._start = start
        self._states = states

    def __call__(self, worker: int) -> None:
        if self._start is not None:
            self._start(worker)
        if state := self._states.get(worker):
            randomness.restore(state)


def _without(iterator: Iterator[Any], skip: int) -> Iterator[Any]:
    """Loads and drops the batches that were used, which is the only way for an iterable that only supports `next`."""
    for _ in islice(iterator, skip):
        pass
    return iterator

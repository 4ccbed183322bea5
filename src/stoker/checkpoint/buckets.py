"""The buckets of DistributedDataParallel, carried over a restart, and gradients added in the order of ranks."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from stoker.checkpoint.read.shelf import say
from stoker.checkpoint.save.writer import SaveThread

Record = dict[str, Any]
PLACEMENTS = ("same-placement", "any-placement")
_ORDER = "_stoker_order"  # on a wrapper whose reducer was given its parameters in another order: that order


class Buckets:
    """Of every wrapper that trains what `things` hold."""

    def __init__(self, things: Mapping[str, Any], exact: str) -> None:
        if exact not in PLACEMENTS:
            raise ValueError(f"exact={exact!r}: expected {' or '.join(map(repr, PLACEMENTS))}")
        self._things = things
        self._ordered = exact == "any-placement"
        self._wrappers: list[Any] = []
        self._searched = False
        self._kept: dict[int, list[list[int]]] = {}  # arranged for good, by the wrapper's identity
        self._wanted: dict[int, list[list[int]]] = {}  # of the checkpoint that was restored
        self._waiting: dict[str, Record] = {}  # of wrappers that have not been found yet
        self._take(given(things.values()))

    @property
    def settled(self) -> bool:
        """Whether what happens next can be foretold. A static graph that has made one backward pass says nothing."""
        return not any(one.static_graph and not uses(one) and _passes(one) == 1 for one in self._wrappers)

    def state(self) -> dict[str, Record]:
        """As they are now. Does not wait for other ranks."""
        if not self._searched:
            self._search()
        return {name: self._record(one) for name, one in self.named().items()}

    def restore(self, records: Mapping[str, Record]) -> None:
        """Waits for all ranks. Wrappers that are still to be made are dealt with by `begin`."""
        self._waiting = dict(records)
        self._arrange()

    def begin(self) -> None:
        """Before the first step. Deals with wrappers made since, or not given to the checkpoint. Waits for all
        ranks if there are any to restore."""
        if self._waiting or (self._ordered and not self._searched):
            self._search()
            self._arrange()
            self._waiting = {}

    def add(self, thing: Any) -> None:
        """What a framework has wrapped, which is in nothing the checkpoint was given."""
        self._take(given([thing]))

    def _search(self) -> None:
        self._searched = True
        self._take(elsewhere(self._things.values(), self._wrappers))

    def _take(self, found: list[Any]) -> None:
        for wrapper in found:
            if all(one is not wrapper for one in self._wrappers):
                self._wrappers.append(wrapper)
                if self._ordered:
                    use(wrapper)

    def named(self) -> dict[str, Any]:
        """Two of the same signature are told apart by their order."""
        named: dict[str, Any] = {}
        for wrapper in self._wrappers:
            name, number = signature(wrapper), 0
            while f"{number} {name}" in named:
                number += 1
            named[f"{number} {name}"] = wrapper
        return named

    def _record(self, wrapper: Any) -> Record:
        if uses(wrapper):
            return {"buckets": None, "order": None, "sync_buffers": wrapper.require_forward_param_sync}
        arranged = self._kept.get(id(wrapper))
        if arranged is None and (arranged := arrangement(wrapper)) is not None:
            self._kept[id(wrapper)] = arranged
            if sorted(self._wanted.get(id(wrapper), arranged)) != sorted(arranged):
                say("DistributedDataParallel uses different buckets than before: results may be rounded differently")
        order = None if arranged else _ready_order(wrapper)
        return {"buckets": arranged, "order": order, "sync_buffers": wrapper.require_forward_param_sync}

    def _arrange(self) -> None:
        for name, wrapper in self.named().items():
            if name in self._waiting:
                buckets = arrange(wrapper, self._waiting.pop(name))
                self._wanted |= {id(wrapper): buckets} if buckets else {}


def arrange(wrapper: Any, record: Record) -> list[list[int]] | None:
    """Gives a wrapper that has made no backward pass the buckets of the record, as the first rank has them. Waits for
    all ranks."""
    if uses(wrapper):
        return rearrange(wrapper, record)
    distributed = sys.modules["torch.distributed"]
    everyone: list[Any] = [None] * distributed.get_world_size(wrapper.process_group)
    distributed.all_gather_object(everyone, record, group=wrapper.process_group)
    return rearrange(wrapper, {**everyone[0], "sync_buffers": record["sync_buffers"]})


def rearrange(wrapper: Any, record: Record) -> list[list[int]] | None:
    """The same where every rank of the wrapper has the same record. Waits for all of them."""
    wrapper.require_forward_param_sync = record["sync_buffers"]
    buckets, order = record["buckets"], record["order"]
    order = [index for bucket in buckets for index in bucket] if buckets else order
    if not order or uses(wrapper):
        return None
    if (reason := _hindrance(wrapper)) is not None:
        say(f"{reason}: the first step may be rounded differently than without the interruption")
        return None
    _replace_reducer(wrapper, order)
    return buckets  # type: ignore[no-any-return]  # of another rank


def arrangement(wrapper: Any) -> list[list[int]] | None:
    """Numbers of parameters, bucket by bucket, once that is for good. None before, or where nothing is ever moved."""
    said = _said(wrapper, "rebuilt_per_bucket_param_indices")
    return [_numbers(wrapper, bucket) for bucket in said.split(",")] if said else None


def _ready_order(wrapper: Any) -> list[int] | None:
    """What the next forward pass will arrange buckets by; None if it will not."""
    said = _said(wrapper, "prev_iteration_grad_ready_order_indices")
    if not said or (wrapper.find_unused_parameters and not wrapper.static_graph):
        return None
    return _completed(_numbers(wrapper, said.replace(",", " ")), len(wrapper._build_params_for_reducer()[0]))


def _completed(ready: list[int], count: int) -> list[int]:
    """A parameter of a static graph may have been ready several times, of which the last counts, or never."""
    last = list(dict.fromkeys(reversed(ready)))[::-1]
    return last + [index for index in range(count) if index not in set(last)]


def _said(wrapper: Any, name: str) -> str:
    """DDP notes these at the beginning of a forward pass, for the one before; in between it has to be told to."""
    if wrapper.logger is None or getattr(wrapper, "_use_python_reducer", False):
        return ""
    if not (said := wrapper._get_ddp_logging_data().get(name, "")):
        wrapper.logger.set_runtime_stats_and_log()
        said = wrapper._get_ddp_logging_data().get(name, "")
    return str(said)


def _numbers(wrapper: Any, text: str) -> list[int]:
    order = getattr(wrapper, _ORDER, None)
    return [order[int(one)] if order else int(one) for one in text.split()]


def _passes(wrapper: Any) -> int:
    wrapper.logger.set_runtime_stats_and_log()
    return int(wrapper._get_ddp_logging_data().get("iteration", 0))


def _hindrance(wrapper: Any) -> str | None:
    if getattr(wrapper, "mixed_precision", None) is not None:
        return "DistributedDataParallel with mixed precision cannot be given the buckets of the checkpoint"
    needed = ("_push_all_rebuilt_params", "_rebuild_buckets", "_remove_autograd_hooks")
    if not all(hasattr(wrapper.reducer, name) for name in needed) or not hasattr(wrapper, "_comm_hooks"):
        return "this PyTorch does not support restoring the buckets of DistributedDataParallel"
    return None


def _replace_reducer(wrapper: Any, order: list[int]) -> None:
    """A reducer that knows the parameters in this order arranges them so at once, without a backward pass: nothing is
    computed, no gradient is touched and no communication hook is called."""
    distributed = sys.modules["torch.distributed"]
    hook = wrapper._get_ddp_logging_data().get("comm_hook", "")
    parameters, sparse = wrapper._build_params_for_reducer()
    parameters, sparse = [parameters[index] for index in order], [sparse[index] for index in order]
    wrapper.reducer._remove_autograd_hooks()
    names = wrapper._build_debug_param_to_name_mapping(parameters)
    wrapper._ddp_init_helper(parameters, sparse, names, wrapper.static_graph)
    if wrapper.static_graph:
        wrapper._static_graph_delay_allreduce_enqueued = False
        wrapper.reducer._set_static_graph()
        wrapper.logger._set_static_graph()
    for function, state in wrapper._comm_hooks:
        wrapper.logger._set_comm_hook_name(function.__qualname__)
        distributed._register_comm_hook(wrapper.reducer, state, function)
    if hook.startswith("BuiltinCommHookType."):
        wrapper._register_builtin_comm_hook(getattr(distributed.BuiltinCommHookType, hook.split(".")[1]))
    setattr(wrapper, _ORDER, order)
    wrapper.reducer._push_all_rebuilt_params()
    wrapper._has_rebuilt_buckets = wrapper.reducer._rebuild_buckets()


def given(things: Iterable[Any]) -> list[Any]:
    """Those among `things` or anywhere inside their modules, in an order that is the same on every rank."""
    kind = _kind()
    if kind is None:
        return []
    module = _module()
    inside = (one for thing in things if isinstance(thing, module) for one in thing.modules())
    return _once(one for one in inside if isinstance(one, kind))


def elsewhere(things: Iterable[Any], known: list[Any]) -> list[Any]:
    """Those that nobody gave us: a script may hand over the bare module, or an object of its own that holds a model.

    Looks through the memory of the process if `things` train a parameter that no known wrapper has. Every rank finds
    the same ones, in the same order.
    """
    kind = _kind()
    if kind is None:
        return []
    covered = {id(parameter) for wrapper in known for parameter in wrapper.parameters()}
    missing = {id(parameter) for thing in things for parameter in _trained(thing)} - covered
    if not missing:
        return []
    gc.collect()  # a wrapper that the script has dropped may be there on one rank and gone on another
    living = [one for one in gc.get_objects() if issubclass(type(one), kind)]
    wanted = [one for one in living if any(id(parameter) in missing for parameter in one.parameters())]
    return sorted(wanted, key=signature)


def signature(wrapper: Any) -> str:
    """The same in the process that resumes, and for wrappers that could stand in for each other."""
    trained = (f"{name} {tuple(one.shape)}" for name, one in wrapper.module.named_parameters() if one.requires_grad)
    return f"{type(wrapper.module).__name__}: {', '.join(trained)}"


def _trained(thing: Any) -> Iterator[Any]:
    module = _module()
    if isinstance(thing, module):
        yield from (one for one in thing.parameters() if one.requires_grad)
    for group in getattr(thing, "param_groups", ()):
        yield from (one for one in group["params"] if one.requires_grad)


def _once(found: Iterable[Any]) -> list[Any]:
    return list({id(one): one for one in found}.values())


def _kind() -> Any:
    """None where there are no ranks to add gradients with."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return sys.modules["torch.nn.parallel"].DistributedDataParallel


def _module() -> Any:
    return sys.modules["torch.nn"].Module


# Messages of one tag keep their order; a script that sends its own will hardly have chosen these numbers.
_CHUNKS, _SUMS = 1_398_033_001, 1_398_033_002


def use(wrapper: Any) -> None:
    """From the next backward pass on. A hook that the script has registered stays, and is reported."""
    if uses(wrapper):
        return
    if own := wrapper._get_ddp_logging_data().get("comm_hook", ""):
        say(f'the communication hook `{own}` adds the gradients: `exact="any-placement"` does nothing here')
        return
    wrapper.register_comm_hook(OrderedSum(wrapper.process_group), reduce)


def uses(wrapper: Any) -> bool:
    return any(function is reduce for function, _ in getattr(wrapper, "_comm_hooks", ()))


def reduce(state: OrderedSum, bucket: Any) -> Any:
    return state.reduce(bucket.buffer())


reduce.__annotations__ = {}  # DDP refuses a hook with any but its own


class OrderedSum:
    def __init__(self, group: Any) -> None:
        self._distributed: Any = sys.modules["torch.distributed"]
        self._torch: Any = sys.modules["torch"]
        self._group = group
        self._rank, self._world = self._distributed.get_rank(group), self._distributed.get_world_size(group)
        # Beginning with the next rank, so that not everybody sends to the same one at the same time.
        self._others = [(self._rank + distance) % self._world for distance in range(1, self._world)]
        self._global = [self._distributed.get_global_rank(group, rank) for rank in range(self._world)]
        self._worker = SaveThread("stoker-sum")
        self._spare: list[Any] = []  # memory for chunks of others

    def reduce(self, buffer: Any) -> Any:
        """A future of the mean over all ranks. On the CPU it is made in the place of `buffer`."""
        if buffer.is_sparse:  # in a bucket of its own, and added up in the order of ranks by PyTorch itself
            buffer = buffer / self._world
            done = self._distributed.all_reduce(buffer, group=self._group, async_op=True).get_future()
            return done.then(lambda future: future.value()[0])
        return self._by_messages(buffer) if buffer.is_cpu else self.by_collectives(buffer)

    def by_collectives(self, buffer: Any) -> Any:
        """For devices with streams, where nothing here blocks."""
        distributed, size = self._distributed, -(-buffer.numel() // self._world)
        padded = buffer
        if size * self._world != buffer.numel():
            padded = buffer.new_zeros(size * self._world)
            padded[: buffer.numel()].copy_(buffer)
        chunks = self._torch.empty_like(padded)
        gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
        sent = distributed.all_to_all_single(chunks, padded, group=self._group, async_op=True)

        def add(_: Any) -> Any:
            first, *more = chunks.view(self._world, size)
            for chunk in more:
                first.add_(chunk)
            gather(padded, first.div_(self._world), group=self._group)
            return padded[: buffer.numel()]

        return sent.get_future().then(add)

    def _by_messages(self, buffer: Any) -> Any:
        """Chunks travel at once, while the backward pass computes; a thread adds them up and sends the sums. Straight
        into memory where they belong: gloo's own collectives of this kind copy everything once more."""
        size = -(-buffer.numel() // self._world)
        chunks = [buffer[rank * size : (rank + 1) * size] for rank in range(self._world)]
        mine = chunks[self._rank]
        room = self._room(mine)
        received = [room[rank] for rank in range(self._world)]
        travelling = [self._receive(received[rank], rank, _CHUNKS) for rank in reversed(self._others)]
        travelling += [self._send(chunks[rank], rank, _CHUNKS) for rank in self._others]
        future = self._torch.futures.Future()
        received[self._rank] = mine
        self._worker.hand(partial(self._add, buffer, chunks, (received, room), travelling, future))
        return future

    def _add(self, buffer: Any, chunks: list[Any], there: Any, travelling: list[Any], future: Any) -> None:
        (first, *more), room = there
        mine = chunks[self._rank]
        try:
            with self._torch.inference_mode():
                _wait(travelling)
                for chunk in more:
                    first.add_(chunk)
                self._torch.div(first, self._world, out=mine)
                self._spare.append(room)
                _wait(
                    [self._receive(chunks[rank], rank, _SUMS) for rank in reversed(self._others)]
                    + [self._send(mine, rank, _SUMS) for rank in self._others]
                )
        except BaseException as error:  # the one who waits for it raises it
            future.set_exception(error)
        else:
            future.set_result(buffer)

    def _room(self, mine: Any) -> Any:
        """For as many chunks of this kind as there are ranks. Used again: fresh memory costs as much as adding up."""
        for place, room in enumerate(self._spare):
            if room.shape[1] == mine.numel() and room.dtype == mine.dtype:
                return self._spare.pop(place)
        return self._torch.empty((self._world, mine.numel()), dtype=mine.dtype)

    def _receive(self, chunk: Any, rank: int, tag: int) -> Any:
        if not chunk.numel():
            return None
        return self._distributed.irecv(chunk, self._global[rank], group=self._group, tag=tag)

    def _send(self, chunk: Any, rank: int, tag: int) -> Any:
        if not chunk.numel():
            return None
        return self._distributed.isend(chunk, self._global[rank], group=self._group, tag=tag)


def _wait(works: list[Any]) -> None:
    for work in works:
        if work is not None:
            work.wait()

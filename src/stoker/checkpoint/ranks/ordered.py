"""Adds gradients in the order of ranks, whatever buckets, ring or placement: `exact="any-placement"`.

A communication hook of DistributedDataParallel. Every rank owns a chunk of each bucket: it receives that chunk from all
ranks, adds them up from the first rank to the last, and sends everybody the result. That moves as many bytes as a ring.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from stoker.checkpoint.read.shelf import say
from stoker.checkpoint.save.thread import SaveThread

# Messages of one tag keep their order; a script that sends its own will hardly have chosen these numbers.
_CHUNKS, _SUMS = 1_398_033_001, 1_398_033_002


def use(wrapper: Any) -> None:
    """From the next backward pass on. A hook that the script has registered stays, and is told about."""
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

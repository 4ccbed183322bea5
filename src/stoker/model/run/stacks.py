"""Where the ranks of a run are: their Python stacks, and the collective operation that a rank waits in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Annotated

from stoker.model.untrusted import Most

MOST_FRAMES = 40  # of a stack
MOST_STACKS = 8  # of a rank
MOST_RANKS = 1024  # of a node
BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class StackFrame:
    """`file` is relative to the working directory or to the installed packages. `code` is the line itself where it is
    the run's own code."""

    function: Annotated[str, Most(200)]
    file: Annotated[str, Most(400)]
    line: int
    code: Annotated[str, Most(200)] = ""

    @property
    def place(self) -> str:
        shown = f", `{self.code}`" if self.code else ""
        return f"{self.file}:{self.line} in {self.function}{shown}"


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, innermost frame first. `name` says which."""

    name: Annotated[str, Most(200)]
    frames: Annotated[tuple[StackFrame, ...], Most(MOST_FRAMES)] = ()


@dataclass(frozen=True, slots=True)
class RankStacks:
    """One rank with its worker processes. The thread that trains comes first; none: no Python stack was available, and
    `note` says why and what the kernel shows instead."""

    rank: int
    stacks: Annotated[tuple[ThreadStack, ...], Most(MOST_STACKS)] = ()
    note: Annotated[str, Most(1000)] = ""

    @property
    def frames(self) -> tuple[StackFrame, ...]:
        return self.stacks[0].frames if self.stacks else ()


@dataclass(frozen=True, slots=True)
class Standstill:
    """What a node says of its ranks when none of them has made progress for as long as the job allows."""

    at: datetime
    quiet_s: float
    ranks: Annotated[tuple[RankStacks, ...], Most(MOST_RANKS)] = ()


@dataclass(frozen=True, slots=True)
class Hang:
    """No node of an attempt made progress. `over_at` is when one did again; None: not yet."""

    at: datetime
    quiet_s: float
    text: str  # who is behind, in words
    ranks: tuple[RankStacks, ...] = ()  # those that are behind first
    over_at: datetime | None = None
    times: int = 1  # that the attempt has hung


# Collective operations, by the library's files that define them. All of these wait for other ranks.
_TORCH = (
    " all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce all_reduce_coalesced"
    " all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list destroy_process_group"
    " gather gather_object init_device_mesh init_process_group monitored_barrier new_group recv recv_object_list reduce"
    " reduce_scatter reduce_scatter_tensor rendezvous scatter scatter_object_list send send_object_list "
)
_TENSORFLOW = " all_gather all_reduce all_to_all barrier broadcast_recv broadcast_send reduce "
_DEFINED = (
    ("torch/distributed/", _TORCH),
    ("jax/experimental/multihost_utils.py", " broadcast_one_to_all process_allgather sync_global_devices "),
    ("jax/_src/distributed.py", " initialize shutdown "),
    ("tensorflow/python/ops/collective_ops.py", _TENSORFLOW),
    ("tensorflow/python/distribute/", _TENSORFLOW),
    ("horovod/", " allgather allgather_object allreduce alltoall barrier broadcast broadcast_object join synchronize "),
)
# Extension modules such as mpi4py leave no frame of their own: the line that calls them says it.
_CALLED = re.compile(
    r"\.([Aa]ll_?(?:reduce|gatherv?|to_?allv?)|[Bb]arrier|[Bb]cast|Gatherv?|Scatterv?|Reduce(?:_scatter)?|Recv|Sendrecv)"
    r"\("
)


def collective(frames: Sequence[StackFrame]) -> str:
    """The operation in which a stack waits for other ranks, as its caller named it; empty: none is known."""
    for frame in reversed(frames):  # from outside: `all_gather_object` calls `all_gather`
        for part, names in _DEFINED:
            if part in frame.file and f" {frame.function} " in names:
                return frame.function
    found = _CALLED.search(frames[0].code) if frames else None
    return found[1] if found else ""


def waits_in(frames: Sequence[StackFrame]) -> str:
    """The same of a rank that does not compute: in the backward pass it then waits for the gradients of others."""
    backward = any("torch/autograd/" in one.file and one.function == BACKWARD for one in frames)
    return collective(frames) or (BACKWARD if backward else "")


def reading(frames: Sequence[StackFrame]) -> StackFrame | None:
    """Where a data loader's worker is in the dataset; None: it is none, or waits for work."""
    inside = list(takewhile(lambda one: not one.file.endswith("torch/utils/data/_utils/fetch.py"), frames))
    return own(inside) if len(inside) < len(frames) else None


def own(frames: Sequence[StackFrame]) -> StackFrame | None:
    """The innermost frame of the run's own code, or of any code; None: there is none."""
    return next((one for one in frames if one.code), frames[0] if frames else None)


def named_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1 and 5-7`"""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    parts = [one for span in spans for one in ([f"{span[0]}-{span[-1]}"] if len(span) > 2 else map(str, span))]
    *most, last = parts
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {' and '.join([', '.join(most), last] if most else [last])}"

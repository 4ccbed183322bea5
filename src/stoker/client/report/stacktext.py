"""The stacks of the ranks of a hung run as lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.model.run.stacks import RankStacks, StackFrame, ThreadStack, waits_in


def stack_lines(ranks: Sequence[RankStacks]) -> Iterator[str]:
    """Each rank with the stack of the thread that trains, innermost frame first, then its other threads and workers."""
    shown: dict[tuple[StackFrame, ...], int] = {}
    for one in ranks:
        if one.frames and one.frames in shown:
            yield f"  rank {one.rank}: the same stack as rank {shown[one.frames]}"
            continue
        shown[one.frames] = one.rank
        if not one.stacks:
            yield f"  rank {one.rank}: {one.note or 'no stack was kept'}"
        for place, stack in enumerate(one.stacks):
            waits = waits_in(stack.frames) if place == 0 else ""
            where = f", waits in {waits}" if waits else ""
            yield f"  rank {one.rank}, {stack.name}{where}:"
            yield from _frames(stack)


def _frames(stack: ThreadStack) -> Iterator[str]:
    for frame in stack.frames:
        code = f"    {frame.code}" if frame.code else ""
        yield f"    {frame.file}:{frame.line} in {frame.function}{code}"

"""Fresh memory to read a checkpoint into: in huge pages where the machine has them at hand."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from contextlib import suppress

from stoker.checkpoint.packing import LARGE_BYTES

_SLOW_NS = 1_500_000  # of the processor's time: a huge page that is at hand takes 0.2 ms, another one 5 ms


class Memory:
    """Huge pages take a fifth of the time that small ones do. But many a virtual machine gives to its host what it does
    not use, and has huge pages brought back one small page at a time, while small ones are mostly there. So the first
    huge page of each room is tried, and after one that was slow no more are asked for."""

    def __init__(self, processor_ns: Callable[[], int] = time.thread_time_ns) -> None:
        self.huge = hasattr(mmap, "MADV_HUGEPAGE")
        self._processor_ns = processor_ns

    def room(self, size_bytes: int) -> memoryview:
        """Private to this process; what is large is on pages of its own and, unlike a bytearray, not written to yet."""
        if size_bytes < LARGE_BYTES:  # in one that is larger, a huge page lies whole
            return memoryview(bytearray(size_bytes))
        room = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if self.huge:
            with suppress(OSError):  # a kernel without them
                self._try_huge(room)
        return memoryview(room)

    def _try_huge(self, room: mmap.mmap) -> None:
        room.madvise(mmap.MADV_HUGEPAGE)
        begun = self._processor_ns()
        room[len(room) // 2] = 0
        if self._processor_ns() - begun > _SLOW_NS:
            self.huge = False
            room.madvise(mmap.MADV_NOHUGEPAGE)

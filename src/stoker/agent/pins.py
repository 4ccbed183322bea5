"""Files held open by the look that found them: what a script removes or rewrites afterwards is still to be had.

On a node whose processors are busy, a script may save and remove several times between a look at its folders and the
moment when the last of many files could be opened.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from stoker.agent.contents import open_still
from stoker.agent.naming import numbers_in
from stoker.agent.openlimit import room_for
from stoker.agent.watching import Found
from stoker.stores.transfer.still import Mark, mark_of

SMALL_BYTES = 1 << 20  # up to here a file that may be rewritten in place is read at once
MOST_READ_BYTES = 32 << 20  # of all of them together


@dataclass(frozen=True, slots=True)
class Pin:
    mark: Mark
    file: io.FileIO
    data: bytes | None = None  # all of it, where it was read at once


class Pins:
    """For one thread."""

    def __init__(self) -> None:
        self._held: dict[str, Pin] = {}
        self._limit = ExitStack()
        self._room = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, some: Iterable[Found], known: Callable[[Found], bool]) -> set[str]:
        """Opens what has no copy in the store yet. Returns the paths of what is gone by now."""
        wanted = [one for one in some if one.is_file and self.get(one) is None and not known(one)]
        self._make_room(len(self._held) + len(wanted))
        gone = set()
        for one in wanted:
            self._let_go([one.path])  # it was another file, or had another content
            if len(self._held) >= self._room:
                continue
            try:
                self._held[one.path] = self._pinned(one, open_still(one.place))
            except FileNotFoundError:
                gone.add(one.path)
            except OSError:
                continue  # whoever sends it says why it cannot be read
        return gone

    def let_go_of_others(self, found: Iterable[Found]) -> None:
        there = {one.path for one in found if self.get(one)}
        self._let_go(self._held.keys() - there)

    def get(self, one: Found) -> Pin | None:
        pin = self._held.get(one.path)
        return pin if _is_of(pin, one) else None

    def release(self) -> None:
        self._let_go(self._held)
        self._limit.close()
        self._room = 0

    def _pinned(self, one: Found, file: io.FileIO) -> Pin:
        mark = mark_of(os.fstat(file.fileno()))
        read = sum(len(pin.data) for pin in self._held.values() if pin.data)
        if numbers_in(one.path) or mark[0] > min(SMALL_BYTES, MOST_READ_BYTES - read):
            return Pin(mark, file)
        with suppress(OSError):
            data = file.read(mark[0] + 1)
            if len(data) == mark[0] and mark_of(os.fstat(file.fileno())) == mark:
                return Pin(mark, file, data)
        return Pin(mark, file)

    def _make_room(self, files: int) -> None:
        if files > self._room:
            self._room = self._limit.enter_context(room_for(files))

    def _let_go(self, paths: Iterable[str]) -> None:
        for path in list(paths):
            if pin := self._held.pop(path, None):
                pin.file.close()


def _is_of(pin: Pin | None, one: Found | None) -> bool:
    """The file is the one that was found, with the content that it had then."""
    if pin is None or one is None or one.mark is None:
        return False
    return (pin.mark[0], pin.mark[1], pin.mark[3]) == (one.mark[0], one.mark[1], one.mark[3])

"""Sends files to the store as they were when they were looked at, even if the script removes them meanwhile."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path

from stoker.agent.contents import Changing, Contents, open_still
from stoker.agent.openfiles import Identity
from stoker.agent.openlimit import room_for
from stoker.agent.pins import Pins
from stoker.agent.watching import Found, Unkept
from stoker.model.snapshot import Entry
from stoker.stores.transfer.still import mark_of

_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # by nothing, by a link, by a folder or a pipe

_Content = tuple[Identity | None, int, int, int]  # which file, and the mark of its content


class Sending:
    """For one thread."""

    def __init__(self, contents: Contents, unkept: Unkept) -> None:
        self._contents = contents
        self._unkept = unkept
        self._hashes: dict[_Content, str] = {}

    def learn(self, found: Collection[Found], entries: Mapping[str, Entry]) -> None:
        """These are in the store."""
        self._hashes = {_content(one): entries[one.path].sha256 for one in found if one.path in entries}

    def forget(self, found: Collection[Found]) -> None:
        """What is no longer there."""
        current = {_content(one) for one in found}
        self._hashes = {content: sha256 for content, sha256 in self._hashes.items() if content in current}

    def knows(self, one: Found) -> bool:
        """Its content is in the store."""
        return not one.is_file or self._contents.has(self._hashes.get(_content(one), ""))

    def send(self, some: Collection[Found], pins: Pins) -> dict[str, Entry]:
        """By path. Raises Changing where one was removed before it could be opened, or written to while it was read."""
        entries = {one.path: known for one in some if (known := self._known(one))}
        unknown = [one for one in some if one.path not in entries]
        loose = [one for one in unknown if not pins.get(one)]
        with ExitStack() as opened:
            # All are open before the first is sent. Links would hold them too, but change the script's own files.
            room = opened.enter_context(room_for(len(pins) + len(loose))) - len(pins)
            files = {one.path: self._open(one, opened) for one in loose[: max(room, 0)]}
            for one in unknown:
                # Several links to one file are one content.
                if entry := self._known(one):
                    entries[one.path] = entry
                elif sha256 := self._send_pinned(one, pins) or self._send_open(one, files, opened):
                    self._hashes[_content(one)] = sha256
                    entries[one.path] = _entry(one, sha256)
        return entries

    def _send_pinned(self, one: Found, pins: Pins) -> str:
        """Its hash; empty where it is not held open since it was looked at."""
        pin = pins.get(one)
        if pin is None:
            return ""
        if pin.data is not None:
            return self._contents.ship_bytes(pin.data)
        pin.file.seek(0)
        return self._contents.ship_open(pin.file, pin.mark)

    def _send_open(self, one: Found, files: Mapping[str, io.FileIO | None], opened: ExitStack) -> str:
        """Its hash; empty where it may not be read."""
        file = files[one.path] if one.path in files else self._open(one, opened)
        if file is None or one.mark is None:
            return ""
        with file:
            return self._contents.ship_open(file, one.mark)

    def send_copy(self, path: str, copy: Path) -> Entry:
        """Of a file that is copied, because somebody keeps it open."""
        with open_still(str(copy)) as file:
            mark = mark_of(os.fstat(file.fileno()))
            return Entry(path, sha256=self._contents.ship_open(file, mark), size_bytes=mark[0])

    def _open(self, one: Found, opened: ExitStack) -> io.FileIO | None:
        """None where it may not be read."""
        try:
            return opened.enter_context(open_still(one.place))
        except OSError as error:
            if error.errno in _REPLACED:
                raise Changing from error
            if not isinstance(error, PermissionError):
                raise
            self._unkept(one.path, str(error.strerror))
            return None

    def _known(self, one: Found) -> Entry | None:
        """None for a file whose content is not known to be in the store."""
        if not one.is_file:
            return one.entry
        sha256 = self._hashes.get(_content(one), "")
        return _entry(one, sha256) if self._contents.has(sha256) else None


def _entry(one: Found, sha256: str) -> Entry:
    """As `dataclasses.replace` would make it, in a third of the time: there may be thousands."""
    return Entry(one.path, sha256=sha256, size_bytes=one.entry.size_bytes, executable=one.entry.executable)


def _content(one: Found) -> _Content:
    return (one.identity, *(one.mark[:3] if one.mark else (0, 0, 0)))

"""Sends files to the store as they were when they were looked at, even if the script removes them meanwhile."""

from __future__ import annotations

import errno
import io
import os
import resource
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from stoker.agent.contents import Changing, Contents, open_still
from stoker.agent.openfiles import Identity
from stoker.agent.watching import Found, Unkept
from stoker.model.snapshot import Entry
from stoker.stores.still import mark_of

SPARE = 128  # open files that the rest of the agent may need
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)  # by nothing, by a link, by a pipe

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

    def send(self, some: Collection[Found]) -> dict[str, Entry]:
        """By path. Raises Changing where one was removed before it could be opened, or written to while it was read."""
        entries = {one.path: known for one in some if (known := self._known(one))}
        unknown = [one for one in some if one.path not in entries]
        with ExitStack() as opened:
            # All are open before the first is sent. Links would hold them too, but change the script's own files.
            room = opened.enter_context(_room_for(len(unknown)))
            files = {one.path: self._open(one, opened) for one in unknown[:room]}
            for one in unknown:
                # Several links to one file are one content.
                if entry := self._known(one):
                    entries[one.path] = entry
                elif (file := files[one.path] if one.path in files else self._open(one, opened)) and one.mark:
                    with file:
                        sha256 = self._contents.ship_open(file, one.mark)
                    self._hashes[_content(one)] = sha256
                    entries[one.path] = replace(one.entry, sha256=sha256)
        return entries

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
        return replace(one.entry, sha256=sha256) if self._contents.has(sha256) else None


@contextmanager
def _room_for(files: int) -> Iterator[int]:
    """How many files can be held open. The limit is raised for that, and not for good: scripts started later have
    the usual one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = files + SPARE
    if soft != resource.RLIM_INFINITY and wanted > soft:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    now = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        yield files if now == resource.RLIM_INFINITY else max(now - SPARE, 0)
    finally:
        if now != soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _content(one: Found) -> _Content:
    return (one.identity, *(one.mark[:3] if one.mark else (0, 0, 0)))

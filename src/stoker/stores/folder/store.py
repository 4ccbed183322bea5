"""A store in a folder. Standard library only: agents carry this file."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

from stoker.errors import AlreadyThere, Missing, StoreFailed
from stoker.stores import Store, Stored
from stoker.stores.transfer.disk import disk_failed, read_past_cache
from stoker.stores.trees.clearing import clear

_PART = ".part-"  # a file being written; never listed, never read
_NAME = rf"(?!\.\.?(?:/|\Z)|{re.escape(_PART)})[^/\0]+"  # neither `.` nor `..`, nor a file being written
_KEY = re.compile(f"{_NAME}(?:/{_NAME})*")
# Do not block on a pipe that a script has put in the place of an object.
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_TRIES = 100  # for a folder that concurrent deletes keep removing while it is empty
_PIECE_BYTES = 1 << 30  # the kernel reads at most 2 GiB at once
_COPY_BYTES = 256 << 10  # stays in the CPU cache between reading, hashing and writing
_UNSYNCED = 256  # files that a commit waits for; of more, the newest
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
_IN_USE = (errno.ENOTEMPTY, errno.EEXIST)
_NO_OBJECT = (*_NOT_THERE, errno.ELOOP, errno.ENAMETOOLONG)  # a link to itself, or a path that is too deep


class Adopted(NamedTuple):
    """`sha256` is empty where the file changed while it was read. `new` is false where the store had the content."""

    sha256: str
    seen: os.stat_result
    new: bool


class FolderStore(Store):
    """With `durable`, a put with `only_new` is a commit: it returns when the object, and everything that this store put
    before it, would survive a power cut. Other puts are complete or absent, but the newest of them may be lost."""

    at_once = 4  # so that two cores always have something to hash; more threads would only wait for each other

    def __init__(
        self, root: Path, *, durable: bool = False, makes_root: bool = True, part_of: Path | None = None
    ) -> None:
        """`makes_root`: the first write creates the root, if it never existed. `part_of`: the root of the whole store,
        where this one has only some of its keys; folders below it come and go."""
        self.root = root
        self._top = os.fspath(root)  # a Path would cost as much as the read
        self.url = root.absolute().as_uri()
        self._whole = os.fspath(part_of or root)
        self._seen = not makes_root or os.path.isdir(self._whole)  # whether the root existed: it is not created again
        self._durable = durable
        self._unsynced: dict[str, None] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_url(cls, url: str, *, durable: bool = True) -> FolderStore:
        """For a node: a run resumes from what it commits."""
        return cls(Path(unquote(urlsplit(url).path)), durable=durable)

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        try:
            file = os.open(self._place(key), _READ)
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(key) from None
        except OSError as error:
            raise disk_failed("read", key, error) from error
        try:
            seen = os.fstat(file)
            if not stat.S_ISREG(seen.st_mode):
                raise _missing(key)
            there = seen.st_size - start
            return _read(file, start, there if size is None else min(size, there))
        except OSError as error:
            raise disk_failed("read", key, error) from error
        finally:
            os.close(file)

    def path(self, key: str) -> str:
        return self._place(key)

    @property
    def near(self) -> bool:
        return True

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        path = self._place(key)
        folder = path[: path.rindex("/")]
        part = f"{folder}/{_PART}{secrets.token_hex(8)}"
        commit = only_new and self._sync()
        placed = False
        try:
            file = self._open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                _write(file, data)
                if commit:
                    os.fsync(file)
            finally:
                os.close(file)
            if only_new:
                _link(part, path, key)
            else:
                os.replace(part, path)
                placed = True
            if commit:
                _sync_one(folder)
        except OSError as error:
            raise disk_failed("write", key, error) from error
        finally:
            if not placed:
                with suppress(OSError):
                    os.unlink(part)
        if self._durable and not only_new:
            self._remember(path)

    def adopt(self, place: str, key_of: Callable[[str], str]) -> Adopted:
        """Puts a local file under the key of its hash, reading it only once: other kinds of store cannot, since they
        need the key first. A file that changed meanwhile is not put."""
        source = os.open(place, _READ)
        try:
            before = os.fstat(source)
            adopt = self._adopt_small if before.st_size <= _COPY_BYTES else self._adopt_large
            return adopt(source, before, key_of)
        finally:
            os.close(source)

    def _adopt_small(self, source: int, before: os.stat_result, key_of: Callable[[str], str]) -> Adopted:
        """Writes nothing where the store has the content: it is in memory by the time its hash is known."""
        data = os.read(source, before.st_size + 1)
        after = os.fstat(source)
        if len(data) != before.st_size or not _same(before, after):
            return Adopted("", after, new=False)
        sha256 = hashlib.sha256(data).hexdigest()
        key = key_of(sha256)
        new = not os.path.exists(self._place(key))  # a Path would cost as much as the call
        if new:
            self.put(key, data)
        return Adopted(sha256, after, new=new)

    def _adopt_large(self, source: int, before: os.stat_result, key_of: Callable[[str], str]) -> Adopted:
        part = f"{self._top}/{_PART}{secrets.token_hex(8)}"
        placed = False
        try:
            sha256 = self._copy(source, part, before.st_size)
            after = os.fstat(source)
            if not sha256 or not _same(before, after):
                return Adopted("", after, new=False)
            path = self._place(key_of(sha256))
            new = not os.path.exists(path)  # as above
            if new:
                placed = self._rename(part, path)
            return Adopted(sha256, after, new=new)
        finally:
            if not placed:
                with suppress(OSError):
                    os.unlink(part)

    def _copy(self, fd: int, part: str, size: int) -> str:
        """The hash, or nothing where the source has fewer bytes."""
        hashed = hashlib.sha256()
        copied = 0
        target = self._open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for piece in read_past_cache(io.FileIO(fd, "rb", closefd=False), size):
                hashed.update(piece)
                _write_all(target, piece)
                copied += len(piece)
        except OSError as error:
            raise disk_failed("write", part, error) from error
        finally:
            os.close(target)
        return hashed.hexdigest() if copied == size else ""

    def _rename(self, part: str, path: str) -> bool:
        """The folder may have to be created, and a concurrent delete may remove it while it is empty."""
        for _ in range(_TRIES):
            try:
                os.replace(part, path)
                return True
            except FileNotFoundError:
                self._make_folder(path[: path.rindex("/")])
            except OSError as error:
                raise disk_failed("write", path, error) from error
        raise StoreFailed(f"the folder of `{path}` is removed repeatedly")

    def append(self, key: str, offset: int, data: bytes) -> int:
        path = self._place(key)
        create = os.O_CREAT if offset == 0 else 0  # a refused append creates nothing
        try:
            with os.fdopen(self._open(path, os.O_WRONLY | os.O_APPEND | create), "ab", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                if offset > size:
                    raise StoreFailed(f"`{key}` has {size} bytes, cannot append at {offset}")
                fresh = memoryview(data)[size - offset :]
                while fresh:
                    fresh = fresh[os.write(file.fileno(), fresh) :]
                return max(size, offset + len(data))
        except FileNotFoundError:
            raise StoreFailed(f"`{key}` not found in the store, cannot append at {offset}") from None
        except OSError as error:
            raise disk_failed("append to", key, error) from error

    def list(self, prefix: str) -> Iterator[Stored]:
        folders = [f"{prefix.removesuffix('/')}/" if prefix else ""]
        if prefix:
            self._place(folders[0][:-1])
        while folders:
            folder = folders.pop()
            with _whatever_is_there(folder), os.scandir(f"{self._top}/{folder}") as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}{entry.name}/")
                    elif not entry.name.startswith(_PART):
                        with _whatever_is_there(folder):
                            seen = entry.stat()
                            yield Stored(folder + entry.name, seen.st_size, seen.st_mtime, _etag(seen))

    def delete(self, key: str) -> None:
        path = Path(self._place(key))
        try:
            path.unlink(missing_ok=True)
            for parent in path.parents:  # a store has no empty folders
                if parent == self.root:
                    break
                parent.rmdir()
        except OSError as error:
            if error.errno not in (*_NOT_THERE, *_IN_USE) and not path.is_dir():
                raise disk_failed("delete", key, error) from error

    def remove_below(self, prefix: str) -> None:
        path = Path(self._place(prefix.removesuffix("/")))
        try:
            clear(os.fspath(path))
            for parent in path.parents:
                if parent == self.root:
                    break
                parent.rmdir()
        except OSError as error:
            if error.errno not in (*_NOT_THERE, *_IN_USE):
                raise disk_failed("remove", prefix, error) from error

    def _place(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise StoreFailed(f"`{key}` is not a key")
        return f"{self._top}/{key}"

    def _open(self, path: str, flags: int) -> int:
        """Creates its folder. A concurrent delete may remove that while it is empty, so this is retried."""
        for _ in range(_TRIES):
            try:
                return os.open(path, flags | getattr(os, "O_BINARY", 0), 0o666)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
            self._make_folder(path[: path.rindex("/")])
        return os.open(path, flags, 0o666)

    def _make_folder(self, folder: str) -> None:
        """A root that existed and no longer does is an unmounted disk: a new one would be somewhere else."""
        if not self._seen:
            os.makedirs(self._whole, exist_ok=True)
            self._seen = True
        elif not os.path.isdir(self._whole):
            raise StoreFailed(
                f"the folder `{self._whole}` of the store no longer exists",
                hint=f"restore it, or start with an empty one: `mkdir {self._whole}`",
            )
        place = self._whole
        with suppress(FileNotFoundError):  # a parent was removed: the caller retries
            for name in filter(None, folder[len(self._whole) :].split("/")):
                place = f"{place}/{name}"
                with suppress(FileExistsError):
                    os.mkdir(place)  # one by one: the root itself may vanish at any moment, and is not created here

    def _remember(self, path: str) -> None:
        with self._lock:
            self._unsynced[path] = None
            if len(self._unsynced) > _UNSYNCED:
                del self._unsynced[next(iter(self._unsynced))]

    def _sync(self) -> bool:
        """Flushes what was put before, and returns whether there was anything."""
        with self._lock:
            paths = list(self._unsynced)
            self._unsynced.clear()
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):  # deleted since
                _sync_one(path)
        for folder in {path[: path.rindex("/")] for path in paths}:
            with suppress(FileNotFoundError):
                _sync_one(folder)
        return bool(paths)


@contextmanager
def _whatever_is_there(folder: str) -> Iterator[None]:
    """Skips what does not exist, or cannot be an object."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_OBJECT:
            raise disk_failed("list", folder, error) from error


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_size, one.st_mtime_ns, one.st_ctime_ns) == (other.st_size, other.st_mtime_ns, other.st_ctime_ns)


def _missing(key: str) -> Missing:
    return Missing(f"`{key}` not found in the store")


def _read(file: int, start: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.pread(file, min(size, _PIECE_BYTES), start)):
        pieces.append(piece)
        start += len(piece)
        size -= len(piece)
    return b"".join(pieces)


def _write(file: int, data: bytes | BinaryIO) -> None:
    if isinstance(data, bytes):
        _write_all(file, memoryview(data))
        return
    if not isinstance(data, io.RawIOBase):
        while piece := data.read(_COPY_BYTES):
            _write_all(file, memoryview(piece))
        return
    buffer = memoryview(bytearray(_COPY_BYTES))  # one for all pieces: fresh memory would cost as much as the copy
    while size := data.readinto(buffer):
        _write_all(file, buffer[:size])


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync_one(path: str) -> None:
    """A file, or the names in a folder."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _link(part: str, path: str, key: str) -> None:
    try:
        os.link(part, path)  # fails where the key exists, which rename would not
    except FileExistsError:
        raise AlreadyThere(f"`{key}` already exists in the store") from None


def _etag(seen: os.stat_result) -> str:
    """Every put creates a new file, so its inode distinguishes versions that a coarse clock does not."""
    return f"{seen.st_ino:x}-{seen.st_mtime_ns:x}-{seen.st_size:x}"

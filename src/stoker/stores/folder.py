"""A store in a folder. Standard library only: agents carry this file."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from stoker.errors import AlreadyThere, Missing, StoreFailed
from stoker.stores import Stored

_PART = ".part-"  # a file being written; never listed, never read


class FolderStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = root.absolute().as_uri()

    @classmethod
    def from_url(cls, url: str) -> FolderStore:
        return cls(Path(unquote(urlsplit(url).path)))

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        try:
            with self._path(key).open("rb", buffering=0) as file:
                if size is None:
                    size = os.fstat(file.fileno()).st_size - start
                return os.pread(file.fileno(), max(size, 0), start)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise Missing(f"the store has no `{key}`") from None
        except OSError as error:
            raise _failed("read", key, error) from error

    def put(self, key: str, data: bytes | BinaryIO, *, only_new: bool = False) -> None:
        path = self._path(key)
        part = path.with_name(f"{_PART}{secrets.token_hex(8)}")
        try:
            with _open_new(part) as file:
                if isinstance(data, bytes):
                    file.write(data)
                else:
                    shutil.copyfileobj(data, file, 1 << 20)
            if only_new:
                os.link(part, path)  # fails where the key is taken, which rename would not
                part.unlink()
            else:
                part.replace(path)
        except FileExistsError:
            raise AlreadyThere(f"the store already has `{key}`") from None
        except OSError as error:
            raise _failed("write", key, error) from error
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def append(self, key: str, offset: int, data: bytes) -> int:
        path = self._path(key)
        try:
            with _open_append(path) as file:
                size = os.fstat(file.fileno()).st_size
                if offset > size:
                    raise StoreFailed(f"`{key}` has {size} bytes, and was asked to go on at {offset}")
                fresh = memoryview(data)[size - offset :]
                while fresh:
                    fresh = fresh[os.write(file.fileno(), fresh) :]
                return max(size, offset + len(data))
        except OSError as error:
            raise _failed("append to", key, error) from error

    def list(self, prefix: str) -> Iterator[Stored]:
        top = self._path(prefix)
        if not top.is_dir():
            return
        for folder, _, names in os.walk(top):
            for name in names:
                if name.startswith(_PART):
                    continue
                path = Path(folder, name)
                with suppress(FileNotFoundError):
                    seen = path.stat()
                    yield Stored(path.relative_to(self.root).as_posix(), seen.st_size, seen.st_mtime)

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
            for parent in path.parents:  # a store has no empty folders
                if parent == self.root:
                    break
                parent.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
                raise _failed("delete", key, error) from error

    def _path(self, key: str) -> Path:
        if key.startswith("/") or ".." in key.split("/") or "\0" in key:
            raise StoreFailed(f"`{key}` is not a key")
        return self.root / key


def _open_new(path: Path) -> BinaryIO:
    try:
        return path.open("xb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")


def _open_append(path: Path) -> BinaryIO:
    try:
        return path.open("ab", buffering=0)  # type: ignore[return-value]  # FileIO is all that is used of it
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)  # type: ignore[return-value]


def _failed(verb: str, key: str, error: OSError) -> StoreFailed:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFailed(f"the disk is full: could not {verb} `{key}`", hint="free some space, then try again")
    return StoreFailed(f"could not {verb} `{key}`: {error.strerror or error}")

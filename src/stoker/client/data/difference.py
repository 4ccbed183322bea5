"""What differs between two versions, by path."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.model.dataset import DataFile, DatasetVersion, Manifest


@dataclass(frozen=True, slots=True)
class DataChange:
    """A file that is not the same in both. None: that version has none of this path."""

    path: str
    first_bytes: int | None
    second_bytes: int | None


@dataclass(frozen=True, slots=True)
class DataDifference:
    first: DatasetVersion
    second: DatasetVersion
    changes: tuple[DataChange, ...]
    same_files: int

    @property
    def added(self) -> list[DataChange]:
        return [change for change in self.changes if change.first_bytes is None]

    @property
    def removed(self) -> list[DataChange]:
        return [change for change in self.changes if change.second_bytes is None]

    @property
    def changed(self) -> list[DataChange]:
        return [change for change in self.changes if None not in (change.first_bytes, change.second_bytes)]


def differ(first: DatasetVersion, second: DatasetVersion, ours: Manifest, theirs: Manifest) -> DataDifference:
    """By path, in order. A file in place and one that was uploaded are compared by size, since nothing else is known of
    both."""
    left = {file.path: file for file in ours.files}
    right = {file.path: file for file in theirs.files}
    changes = tuple(
        DataChange(path, _size(left.get(path)), _size(right.get(path)))
        for path in sorted(left.keys() | right.keys())
        if not _same(left.get(path), right.get(path))
    )
    return DataDifference(first, second, changes, len(left.keys() | right.keys()) - len(changes))


def _size(file: DataFile | None) -> int | None:
    return file.size_bytes if file else None


def _same(one: DataFile | None, other: DataFile | None) -> bool:
    if one is None or other is None or one.size_bytes != other.size_bytes:
        return False
    if one.sha256 and other.sha256:
        return one.sha256 == other.sha256
    return bool(one.sha256 or other.sha256) or (one.key, one.etag) == (other.key, other.etag)

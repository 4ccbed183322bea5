"""Output files that differ, and by how much if the standard library can read their numbers."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from stoker.client.certify import arrays
from stoker.client.certify.arrays import ArraysUnreadable

_LARGEST_TEXT_BYTES = 50_000_000
_LARGEST_WORDS_BYTES = 1_000_000  # of text without a format that is known
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class FileFault(StrEnum):
    MISSING = "missing"
    EXTRA = "extra"
    NUMBERS = "numbers"  # identical except for numbers
    CONTENT = "content"  # a different structure, or an unsupported format


@dataclass(frozen=True, slots=True)
class FileChange:
    """One output file that differs from the undisturbed run's."""

    path: str
    fault: FileFault
    run: str = ""
    largest: float = 0.0  # absolute
    relative: float = 0.0  # to the largest number in the same list, column or tensor
    where: str = ""  # the tensor, column or field with the largest
    detail: str = ""  # what differs in structure, as text


def changed(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Paths whose contents differ. Event files contain times and are compared as metrics."""
    paths = sorted(ours.keys() | theirs.keys())
    return [path for path in paths if ours.get(path) != theirs.get(path) and "tfevents" not in path]


def compare(first: Path, second: Path, path: str) -> FileChange:
    """`first` holds the undisturbed run's outputs, `second` the other's; the two files are known to differ."""
    if not (second / path).is_file():
        return FileChange(path, FileFault.MISSING)
    if not (first / path).is_file():
        return FileChange(path, FileFault.EXTRA)
    try:
        found = _numbers(first / path, second / path)
    except ArraysUnreadable as error:
        return FileChange(path, FileFault.CONTENT, detail=str(error))
    if found is None:
        return FileChange(path, FileFault.CONTENT, detail="the numbers are identical; something else differs")
    return replace(found, path=path)


def _numbers(first: Path, second: Path) -> FileChange | None:
    """None if all numbers are identical."""
    suffix = first.suffix.lower()
    if suffix in (".json", ".jsonl", ".csv", ".tsv"):
        return _text_numbers(_text(first), _text(second), suffix)
    try:
        gaps = list(arrays.gaps(first, second))
    except ArraysUnreadable:
        if first.stat().st_size > _LARGEST_WORDS_BYTES or not _is_text(first):
            raise
        return _worst(_in_words(_text(first)), _in_words(_text(second)))
    if not gaps:
        return None
    worst = max(gaps, key=lambda gap: gap.relative)
    largest = max(gap.largest for gap in gaps)
    return FileChange("", FileFault.NUMBERS, largest=largest, relative=worst.relative, where=worst.name)


def _is_text(path: Path) -> bool:
    data = path.read_bytes()
    try:
        return b"\0" not in data and bool(data.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _in_words(text: str) -> dict[str, list[Any]]:
    """The numbers in any text, each by itself, and the words around them."""
    numbers = {f"number {count}": [float(one)] for count, one in enumerate(_NUMBER.findall(text), 1)}
    return {"": [_NUMBER.sub("0", text)], **numbers}


def _text(path: Path) -> str:
    if path.stat().st_size > _LARGEST_TEXT_BYTES:
        raise ArraysUnreadable("too large to compare as text")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ArraysUnreadable("not text") from None


def _text_numbers(ours: str, theirs: str, suffix: str) -> FileChange | None:
    if suffix in (".csv", ".tsv"):
        read = _columns(ours, suffix), _columns(theirs, suffix)
    else:
        read = _fields(ours, suffix), _fields(theirs, suffix)
    return _worst(*read)


def _worst(ours: dict[str, list[Any]], theirs: dict[str, list[Any]]) -> FileChange | None:
    """The column or field that differs most, relative to the largest number in it."""
    worst: FileChange | None = None
    for name in ours.keys() | theirs.keys():
        one, other = ours.get(name, []), theirs.get(name, [])
        if len(one) != len(other):
            what = f" of `{name}`" if name else ""
            raise ArraysUnreadable(f"{len(other)} values{what} instead of {len(one)}")
        if any(
            left != right and not (_number(left) and _number(right)) for left, right in zip(one, other, strict=True)
        ):
            raise ArraysUnreadable(f"the text of `{name}` differs" if name else "the text differs")
        largest = max((abs(left - right) for left, right in zip(one, other, strict=True) if left != right), default=0.0)
        scale = max((abs(value) for value in one if _number(value)), default=0.0)
        relative = largest / scale if scale else float(largest > 0)
        if largest and (worst is None or relative > worst.relative):
            worst = FileChange("", FileFault.NUMBERS, largest=largest, relative=relative, where=name)
    return worst


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _columns(text: str, suffix: str) -> dict[str, list[Any]]:
    rows = list(csv.reader(io.StringIO(text), delimiter="\t" if suffix == ".tsv" else ","))
    titled = bool(rows) and not any(_number(_cell(cell)) for cell in rows[0])
    titles = rows[0] if titled else [f"column {number}" for number in range(1, len(rows[0]) + 1)] if rows else []
    found: dict[str, list[Any]] = {title: [] for title in titles}
    for row in rows[1:] if titled else rows:
        for index, cell in enumerate(row):
            found.setdefault(titles[index] if index < len(titles) else f"column {index + 1}", []).append(_cell(cell))
    return found


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _fields(text: str, suffix: str) -> dict[str, list[Any]]:
    """Leaves by their path, those of a list together: `history[].loss`."""
    try:
        data = (
            [json.loads(line) for line in text.splitlines() if line.strip()] if suffix == ".jsonl" else json.loads(text)
        )
    except ValueError:
        raise ArraysUnreadable("not JSON") from None
    found: dict[str, list[Any]] = {}
    for name, value in _leaves("", data):
        found.setdefault(name, []).append(value)
    return found


def _leaves(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(f"{path}[]", item)
    else:
        yield path, value

"""A file of ratings as four columns of numbers: 25 million lines in seconds, a wrong one by its number."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from problem import Problem

COLUMNS = ("userId", "movieId", "rating", "timestamp")
BLOCK_BYTES = 16 << 20  # parsed at once: small enough for the cache to help, large enough for numpy to be fast
LARGEST_ID = 2**31 - 1
NEWLINE, ZERO, POINT = 10, 48, 46


@dataclass
class Ratings:
    """One row per rating. `tenths` is the rating times ten, so that it fits a byte."""

    users: np.ndarray
    films: np.ndarray
    tenths: np.ndarray
    times: np.ndarray


def read_ratings(path: Path, separator: str, *, header: bool) -> Ratings:
    """Every line or none: a line that cannot be read is an error."""
    parts: list[tuple[np.ndarray, ...]] = []
    with path.open("rb") as file:
        names = _header(path, file, separator) if header else list(COLUMNS)
        reader = _Reader(path, separator, names, first_line=2 if header else 1)
        parts.extend(reader.parse(block) for block in _blocks(file))
    if not parts:
        raise Problem(path, None, "holds no ratings")
    return Ratings(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _header(path: Path, file: BinaryIO, separator: str) -> list[str]:
    line = file.readline().decode("utf-8-sig", errors="replace").rstrip("\r\n")
    if not line:
        raise Problem(path, 1, f"is empty; expected a line `{separator.join(COLUMNS)}`")
    names = [name.strip() for name in line.split(separator)]
    if missing := [name for name in COLUMNS if name not in names]:
        other = next((one for one in (";", "\t", "|", ",") if one != separator and one in line), None)
        if len(names) == 1 and other:
            raise Problem(path, 1, f"fields are separated by {other!r}; expected {separator!r}")
        raise Problem(path, 1, f"there is no column `{missing[0]}`; found `{line[:80]}`")
    return names


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    """Whole lines with plain ends, many at once."""
    rest = b""
    while data := file.read(BLOCK_BYTES):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield _plain(rest + data[:cut])
            rest = data[cut:]
        else:
            rest += data
    if rest:
        yield _plain(rest + b"\n")


def _plain(lines: bytes) -> bytes:
    return lines.replace(b"\r\n", b"\n") if b"\r" in lines else lines


class _Reader:
    """Finds the separators of a block, then builds each column digit by digit, for all lines at once."""

    def __init__(self, path: Path, separator: str, names: list[str], first_line: int) -> None:
        self.path, self.separator, self.names, self.line = path, separator, names, first_line
        self.width = len(separator)

    def parse(self, block: bytes) -> tuple[np.ndarray, ...]:
        data = np.frombuffer(block, np.uint8)
        starts, ends = self._fields(block, data)
        place = [self.names.index(name) for name in COLUMNS]
        users, films, times = (self._integers(data, starts[at], ends[at]) for at in (place[0], place[1], place[3]))
        tenths = self._tenths(data, starts[place[2]], ends[place[2]])
        for name, values in (("userId", users), ("movieId", films)):
            if values.max() > LARGEST_ID:
                raise self._wrong(int(values.argmax()), f"`{name}` is {values.max()}; expected at most {LARGEST_ID}")
        self.line += len(users)
        return users.astype(np.int32), films.astype(np.int32), tenths, times

    def _fields(self, block: bytes, data: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Where each column's fields begin and end."""
        at = np.flatnonzero((data == ord(self.separator[0])) | (data == NEWLINE))
        per_line = (len(self.names) - 1) * self.width + 1
        if len(at) % per_line:
            raise self._misshapen(block)
        grid = at.reshape(-1, per_line)
        newlines = data[grid] == NEWLINE
        double = np.diff(grid[:, :-1], axis=1)[:, ::2] if self.width == 2 else np.ones(1)
        if not newlines[:, -1].all() or newlines[:, :-1].any() or (double != 1).any():
            raise self._misshapen(block)
        ends = [np.ascontiguousarray(grid[:, column * self.width]) for column in range(len(self.names))]
        before = np.concatenate([[-1], grid[:-1, -1]])
        starts = [before + 1] + [grid[:, column * self.width - 1] + 1 for column in range(1, len(self.names))]
        return starts, ends

    def _integers(self, data: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        length = end - start
        shortest, longest = int(length.min()), int(length.max())
        if shortest == 0 or longest > 18:
            raise self._no_number(int(length.argmin() if shortest == 0 else length.argmax()))
        values, wrong = np.zeros(len(end), np.int64), np.zeros(len(end), bool)
        for digits in range(longest):
            digit = data[np.maximum(end - 1 - digits, 0)] - np.uint8(ZERO)  # what is no digit wraps around
            if digits >= shortest:
                digit[length <= digits] = 0
            wrong |= digit > 9
            values += digit.astype(np.int64) * 10**digits
        if wrong.any():
            raise self._no_number(int(wrong.argmax()))
        return values

    def _tenths(self, data: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """`4.5` and `4` are read all at once; other ways to write a rating are rare, and read one by one."""
        length = end - start
        first = data[start] - np.uint8(ZERO)
        second = data[np.minimum(start + 2, len(data) - 1)] - np.uint8(ZERO)
        usual = (length == 3) & (data[np.minimum(start + 1, len(data) - 1)] == POINT) & (second <= 9)
        tenths: np.ndarray = first * np.uint8(10) + np.where(usual, second, np.uint8(0))
        for row in np.flatnonzero((first > 9) | ~(usual | (length == 1))):
            try:
                value = float(data[start[row] : end[row]].tobytes())
            except ValueError:
                raise self._no_number(int(row)) from None
            tenths[row] = round(10 * value) if 0 <= value <= 5 else 255
        if tenths.max() > 50:
            raise self._wrong(int(tenths.argmax()), "the rating is out of range; expected 0 to 5")
        return tenths

    def _misshapen(self, block: bytes) -> Problem:
        """The first line that has not the right number of fields."""
        for number, line in enumerate(block.split(b"\n")[:-1], self.line):
            text = line.decode("utf-8", errors="replace")
            if len(fields := text.split(self.separator)) != len(self.names):
                what = f"found {len(fields)} field{'s' * (len(fields) != 1)} in `{text[:80]}`"
                return Problem(
                    self.path, number, f"{what}; expected {len(self.names)}, separated by {self.separator!r}"
                )
        return Problem(self.path, self.line, f"fields are not separated by {self.separator!r}")

    def _no_number(self, row: int) -> Problem:
        return self._wrong(row, f"expected numbers for {', '.join(self.names)}")

    def _wrong(self, row: int, what: str) -> Problem:
        """The line is read again, to show it."""
        number = self.line + row
        with self.path.open("rb") as file:
            text = next(line for at, line in enumerate(file, 1) if at == number).decode("utf-8", errors="replace")
        return Problem(self.path, number, f"{what}; found `{text.strip()[:80]}`")

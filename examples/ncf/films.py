"""The catalogue: which film is which, and which one you may have meant."""

import csv
import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from problem import Problem

GENRES_100K = (  # in the order of their marks
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
ARTICLES = ("the", "a", "an", "le", "la", "les", "il", "el", "das", "der", "die")


@dataclass(frozen=True)
class Film:
    id: int
    title: str
    genres: str = ""


class Films:
    """All films of a data set, by id and by title."""

    def __init__(self, films: list[Film]) -> None:
        self.by_id = {film.id: film for film in films}
        self._by_title: dict[str, list[Film]] = {}
        for film in films:
            self._by_title.setdefault(_plain(film.title), []).append(film)
        self._pieces: dict[str, frozenset[str]] = {}

    def called(self, title: str) -> list[Film]:
        """Usually one; none if no film has that title. Case and the place of the article do not matter."""
        return self._by_title.get(_plain(title), [])

    def nearest(self, title: str, count: int = 3) -> list[str]:
        """Titles that share the most with this one, measured in pieces of three letters."""
        if not self._pieces:
            self._pieces = {film.title: _pieces(film.title) for film in self.by_id.values()}
        wanted = _pieces(title)

        def likeness(entry: tuple[str, frozenset[str]]) -> float:
            shared = len(wanted & entry[1])
            return shared / (len(wanted) + len(entry[1]) - shared or 1)

        return [title for title, _ in heapq.nlargest(count, self._pieces.items(), key=likeness)]


def read_films(path: Path, separator: str, encoding: str, *, header: bool) -> Films:
    lines = _lines(path, encoding)
    rows = _csv_rows(path, lines) if header else _rows(path, lines, separator)
    films = [Film(_id(path, number, first), title.strip(), genres) for number, first, title, genres in rows]
    if not films:
        raise Problem(path, None, "holds no films")
    return Films(films)


def _lines(path: Path, encoding: str) -> list[str]:
    data = path.read_bytes()
    try:
        return data.decode(encoding).lstrip("\ufeff").splitlines()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        hint = f"convert it with `iconv -f latin1 -t utf-8 {path.name}`"
        raise Problem(path, line, f"byte 0x{data[error.start]:02x} is not {encoding}; {hint}") from None


def _csv_rows(path: Path, lines: list[str]) -> Iterator[tuple[int, str, str, str]]:
    reader = csv.reader(lines)
    names = next(reader, [])
    for name in ("movieId", "title"):
        if name not in names:
            found = f"found `{lines[0][:80]}`" if lines else "the file is empty"
            raise Problem(path, 1, f"there is no column `{name}`; {found}")
    of = names.index
    for row in reader:
        if len(row) != len(names):
            raise Problem(path, reader.line_num, f"found {len(row)} fields; expected {len(names)}: {', '.join(names)}")
        yield reader.line_num, row[of("movieId")], row[of("title")], row[of("genres")] if "genres" in names else ""


def _rows(path: Path, lines: list[str], separator: str) -> Iterator[tuple[int, str, str, str]]:
    """`id::title::genres`, or the 24 fields of the oldest set, where genres are marks in a row."""
    for number, line in enumerate(lines, 1):
        first, *rest = line.split(separator)
        if len(rest) < 2:
            raise Problem(path, number, f"found `{line[:80]}`; expected fields separated by {separator!r}")
        marks = rest[-len(GENRES_100K) :]
        marked = "|".join(name for name, mark in zip(GENRES_100K, marks, strict=False) if mark == "1")
        yield number, first, rest[0], rest[1] if separator == "::" else marked


def _id(path: Path, line: int, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Problem(path, line, f"the film's id is `{text[:40]}`; expected a number") from None


def _plain(title: str) -> str:
    """`The Matrix (1999)` and `Matrix, The (1999)` are the same to us."""
    name, bracket, year = title.strip().strip('"').casefold().rpartition(" (")
    name, year = (name, bracket + year) if bracket else (year, "")
    first, _, rest = name.partition(" ")
    if rest and first in ARTICLES:
        name = f"{rest}, {first}"
    return " ".join((name + year).split())


def _pieces(title: str) -> frozenset[str]:
    text = f"  {_plain(title)} "
    return frozenset(text[at : at + 3] for at in range(len(text) - 2))

"""Your own ratings, from a small file of `title, rating` lines. All of it is checked before any of it is used."""

from dataclasses import dataclass
from pathlib import Path

from films import Films
from problem import Problem, report

FEWEST = 20  # as for everyone else in the data


@dataclass(frozen=True)
class Opinion:
    film_id: int
    rating: float


def read_personal(path: Path, films: Films, seen_by: dict[int, int]) -> list[Opinion]:
    """`seen_by` counts the ratings of each film: of two films with one title, the better known is meant."""
    found: dict[int, tuple[int, float]] = {}
    problems: list[Problem] = []
    for number, line in _lines(path):
        try:
            title, rating = _split(path, number, line)
            film_id = _film(path, number, title, films, seen_by)
            if film_id in found:
                raise Problem(path, number, f"`{title}` has a rating in line {found[film_id][0]} already")
            found[film_id] = number, rating
        except Problem as problem:
            problems.append(problem)
    if not problems and len(found) < FEWEST:
        problems.append(Problem(path, None, f"holds {len(found)} ratings; expected {FEWEST} or more"))
    report(path, problems)
    return [Opinion(film_id, rating) for film_id, (_, rating) in found.items()]


def _lines(path: Path) -> list[tuple[int, str]]:
    """Without comments, empty lines and the header."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise Problem(path, None, "there is no such file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Problem(
            path, line, f"byte 0x{error.object[error.start]:02x} is not utf-8; save the file as UTF-8"
        ) from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if lines and lines[0][1].replace(" ", "").casefold() == "title,rating":
        lines = lines[1:]
    if not lines:
        raise Problem(path, None, f"is empty; expected {FEWEST} or more lines of `title, rating`")
    return lines


def _split(path: Path, number: int, line: str) -> tuple[str, float]:
    """At the last comma, since titles have commas, too."""
    title, comma, rating = line.rpartition(",")
    title = title.strip()
    if len(title) > 1 and title.startswith('"') and title.endswith('"'):
        title = title[1:-1].replace('""', '"')
    if not comma or not title:
        raise Problem(path, number, f"found `{line[:80]}`; expected `title, rating`")
    try:
        stars = float(rating)
    except ValueError:
        raise Problem(path, number, f"the rating is `{rating.strip()[:20]}`; expected a number from 0 to 5") from None
    if not 0 <= stars <= 5:
        raise Problem(path, number, f"the rating is {stars:g}; expected 0 to 5")
    return title, stars


def _film(path: Path, number: int, title: str, films: Films, seen_by: dict[int, int]) -> int:
    called = films.called(title)
    if not called:
        nearest = ", ".join(f"`{one}`" for one in films.nearest(title))
        raise Problem(path, number, f"no film is called `{title}`; the nearest are {nearest}")
    return max(called, key=lambda film: seen_by.get(film.id, 0)).id

"""The shapes MovieLens comes in, recognised by their file names."""

from dataclasses import dataclass
from pathlib import Path

from films import Films, read_films
from problem import Problem
from ratings import Ratings, read_ratings


@dataclass(frozen=True)
class Form:
    ratings: str
    films: str
    separator: str
    films_separator: str
    encoding: str
    header: bool


FORMS = (
    Form("ratings.csv", "movies.csv", ",", ",", "utf-8", header=True),  # 20M, 25M, and what generate.py writes
    Form("ratings.dat", "movies.dat", "::", "::", "latin-1", header=False),  # 1M
    Form("u.data", "u.item", "\t", "|", "latin-1", header=False),  # 100k
)


@dataclass(frozen=True)
class MovieLens:
    """A folder with a data set in it, which is read and never written to."""

    folder: Path
    form: Form

    @property
    def ratings_file(self) -> Path:
        return self.folder / self.form.ratings

    def ratings(self) -> Ratings:
        return read_ratings(self.ratings_file, self.form.separator, header=self.form.header)

    def films(self) -> Films:
        form = self.form
        return read_films(self.folder / form.films, form.films_separator, form.encoding, header=form.header)


def open_folder(folder: Path) -> MovieLens:
    """The set in the folder, or in the only folder inside it, as archives unpack."""
    inside = [one for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    for place in (folder, *inside[:1]):
        for form in FORMS:
            if (place / form.ratings).is_file():
                if not (place / form.films).is_file():
                    raise Problem(place, None, f"holds `{form.ratings}` but not `{form.films}`")
                return MovieLens(place, form)
    raise Problem(folder, None, f"holds no data set; expected one of {', '.join(form.ratings for form in FORMS)}")

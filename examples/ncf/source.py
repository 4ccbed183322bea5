"""Where the data comes from: a name, a folder or an archive becomes a folder with a data set in it."""

import hashlib
from pathlib import Path

from download import ARCHIVES, download, unpack
from generate import generate
from movielens import MovieLens, open_folder
from problem import Problem


def open_source(data: str, cache: Path) -> MovieLens:
    """`generated`, or `generated:USERSxFILMSxRATINGS`; a name such as `ml-1m`, to be fetched; a folder; a zip file."""
    if data.partition(":")[0] == "generated":
        return open_folder(_generated(data, cache))
    if data in ARCHIVES:
        return open_folder(download(data, cache))
    path = Path(data)
    if path.is_file():
        if path.suffix != ".zip":
            raise Problem(
                data, None, "is neither a zip file nor a folder; expected the folder in which the data set lies"
            )
        with path.open("rb") as file:
            place = cache / hashlib.file_digest(file, "sha256").hexdigest()[:16]
        if not place.is_dir():
            unpack(path, place)
        return open_folder(place)
    if not path.is_dir():
        known = ", ".join(["generated", *ARCHIVES])
        raise Problem(
            data, None, f"there is no such folder or zip file, nor a data set of that name; known are {known}"
        )
    return open_folder(path)


def _generated(data: str, cache: Path) -> Path:
    size = data.partition(":")[2] or "943x1682x100000"
    try:
        users, films, ratings = map(int, size.split("x"))
    except ValueError:
        raise Problem(
            data, None, f"`{size}` is no size; expected USERSxFILMSxRATINGS, such as 943x1682x100000"
        ) from None
    return generate(cache / f"generated-{size}", users, films, ratings)

"""Brings a MovieLens archive here: goes on where it was cut off, and counts for nothing until its checksum is right."""

import argparse
import hashlib
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from folder import appearing
from movielens import FORMS
from problem import Problem, told

SITE = "https://files.grouplens.org/datasets/movielens"
CHUNK_BYTES = 1 << 20
TRIES = 5  # each goes on where the one before was cut off


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str  # as GroupLens publishes it


ARCHIVES = {
    "ml-100k": Archive(f"{SITE}/ml-100k.zip", "0e33842e24a9c977be4e0107933c0723"),
    "ml-1m": Archive(f"{SITE}/ml-1m.zip", "c4d9eecfca2ab87c1945afe126590906"),
    "ml-20m": Archive(f"{SITE}/ml-20m.zip", "cd245b17a1ae2cc31bb14903e1204af3"),
    "ml-25m": Archive(f"{SITE}/ml-25m.zip", "6b51fb2759a8657d3bfcbfc42b592ada"),
}


def download(name: str, folder: Path, archive: Archive | None = None, pause_s: float = 2.0) -> Path:
    """The folder with the set in it, below `folder`. Nothing is fetched or unpacked twice."""
    archive = archive or ARCHIVES[name]
    place = folder / name
    if place.is_dir():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{name}.zip.part"
    _fetch(archive.url, part, pause_s)
    _verify(part, archive)
    unpack(part, place)
    part.unlink()
    return place


def unpack(archive: Path, place: Path) -> None:
    """The ratings and the films of an archive; the folder appears when it is complete, or not at all."""
    wanted = {name for form in FORMS for name in (form.ratings, form.films)}
    with appearing(place) as folder:
        try:
            with zipfile.ZipFile(archive) as packed:
                for member in packed.infolist():
                    if (name := Path(member.filename).name) in wanted:
                        with packed.open(member) as source, (folder / name).open("wb") as to:
                            shutil.copyfileobj(source, to, CHUNK_BYTES)
        except (zipfile.BadZipFile, EOFError, zlib.error) as error:
            raise Problem(archive, None, f"is no complete zip file ({error}); delete it and fetch it again") from None
        if not any(folder.iterdir()):
            raise Problem(archive, None, f"holds none of {', '.join(sorted(wanted))}")


def _fetch(url: str, part: Path, pause_s: float) -> None:
    for attempt in range(1, TRIES + 1):
        try:
            _go_on(url, part)
            return
        except OSError as error:  # also what urllib raises, and a connection that was cut
            if attempt == TRIES or (isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404)):
                had = f"{part.stat().st_size} bytes are kept for the next try" if part.exists() else "nothing came"
                raise Problem(url, None, f"could not be fetched: {error}; {had}") from None
            time.sleep(pause_s * attempt)


def _go_on(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing behind what we have: the checksum will tell
            return
        raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        expected = int(answer.headers.get("Content-Length") or -1)
        before = file.tell()
        shutil.copyfileobj(answer, file, CHUNK_BYTES)
        if expected >= 0 and file.tell() - before != expected:
            raise ConnectionError(f"the connection ended after {file.tell() - before} of {expected} bytes")


def _verify(part: Path, archive: Archive) -> None:
    """A file that is wrong is removed: going on with it could never make it right."""
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != archive.md5:
        part.unlink()
        raise Problem(archive.url, None, f"has the md5 {found}; expected {archive.md5}; it was removed, try again")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=ARCHIVES)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    args = parser.parse_args()
    with told():
        print(download(args.name, args.folder))

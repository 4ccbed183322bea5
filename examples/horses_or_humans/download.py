"""Brings the published set here: goes on where it was cut off, and counts for nothing until its checksum is right."""

import argparse
import hashlib
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from folder import appearing
from problem import Problem, told

SITE = "https://storage.googleapis.com/download.tensorflow.org/data"
CHUNK_BYTES = 1 << 20
TRIES = 5  # each goes on where the one before was cut off


@dataclass(frozen=True)
class Archive:
    url: str
    sha256: str  # as TensorFlow Datasets publishes it


SETS = {
    "horses_or_humans": {
        "train": Archive(
            f"{SITE}/horse-or-human.zip", "e2e6f70d3d549c5dd10a57165e55af253ee66ad750403f95c0fb76bb943633a9"
        ),
        "validation": Archive(
            f"{SITE}/validation-horse-or-human.zip", "ae5fff2f4f5554791f05358108e2e05d9801b191f1896ea101402f0e7f6c32c0"
        ),
    }
}


def download(parts: dict[str, Archive], place: Path, pause_s: float = 2.0) -> Path:
    """The folder with a folder for each part in it. It appears when all are there; nothing is fetched twice."""
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    fetched = {name: place.parent / f"{place.name}-{name}.zip.part" for name in parts}
    for name, archive in parts.items():
        _fetch(archive.url, fetched[name], pause_s)
        _verify(fetched[name], archive)
    with appearing(place) as folder:
        for name, file in fetched.items():
            unpack(file, folder / name)
    for file in fetched.values():
        file.unlink()
    return place


def unpack(archive: Path, folder: Path) -> None:
    """Its images, each in the folder of its class; whatever else is in there stays there."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                path = PurePosixPath(member.filename)
                if member.is_dir() or len(path.parts) < 2 or path.parts[0].startswith("__") or ".." in path.parts:
                    continue
                to = folder / path.parent.name / path.name
                to.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(member) as source, to.open("wb") as file:
                    shutil.copyfileobj(source, file, CHUNK_BYTES)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise Problem(archive, None, f"is no complete zip file ({error}); delete it and fetch it again") from None


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
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != archive.sha256:
        part.unlink()
        raise Problem(
            archive.url, None, f"has the sha256 {found}; expected {archive.sha256}; it was removed, try again"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SETS)
    parser.add_argument("--folder", type=Path, default=Path("data"))
    args = parser.parse_args()
    with told():
        print(download(SETS[args.name], args.folder / args.name))

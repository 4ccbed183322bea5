"""Makes a dataset in COCO's format: the published one from its zip files, or drawn scenes."""

import argparse
import hashlib
import json
import shutil
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from coco import Scenes
from folder import appearing
from problem import Problem, report, told
from scenes import SIDE, TRAIN, VAL, draw

SITE = "http://images.cocodataset.org"  # its https has the certificate of another name; the checksums tell
CHUNK_BYTES = 1 << 20
TRIES = 5  # each resumes where the one before was cut off


class Archive(NamedTuple):
    path: str
    md5: str  # as published
    folder: str  # where its files belong


COCO_2017 = (
    Archive("zips/train2017.zip", "cced6f7f71b7629ddf16f17bbcfab6b2", "images/train"),
    Archive("zips/val2017.zip", "442b8da7639aecaf257c1dceb8ba8c80", "images/val"),
    Archive("annotations/annotations_trainval2017.zip", "f4bbac642086de4f52a3fdda2de5fa2c", "annotations"),
)


def unpacked(zips: Path, folder: Path) -> Path:
    """The dataset from the zip files in `zips`; what is missing there is downloaded. It appears when it is complete."""
    if folder.is_dir():
        return folder
    zips.mkdir(parents=True, exist_ok=True)
    files = [fetched(archive, zips) for archive in COCO_2017]
    with appearing(folder) as place:
        for archive, file in zip(COCO_2017, files, strict=True):
            unpack(file, place / archive.folder)
    return folder


def fetched(archive: Archive, zips: Path) -> Path:
    """The complete file, with the right checksum."""
    file = zips / PurePosixPath(archive.path).name
    if not file.exists():
        part = file.with_name(f"{file.name}.part")
        _download(f"{SITE}/{archive.path}", part)
        part.rename(file)
    with file.open("rb") as content:
        found = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != archive.md5:
        raise Problem(file, None, f"has the md5 {found}; expected {archive.md5}; remove it and try again")
    return file


def unpack(archive: Path, folder: Path) -> None:
    """Images, and the annotations of objects; captions and key points stay in the archive."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist():
                name = PurePosixPath(member.filename).name
                if member.is_dir() or (name.endswith(".json") and not name.startswith("instances_")):
                    continue
                with packed.open(member) as source, (folder / name.replace("2017.json", ".json")).open("wb") as file:
                    shutil.copyfileobj(source, file, CHUNK_BYTES)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise Problem(archive, None, f"is not a complete zip file ({error}); remove it and try again") from None


def _download(url: str, part: Path) -> None:
    for attempt in range(1, TRIES + 1):
        try:
            _resume(url, part)
            return
        except OSError as error:  # also what urllib raises
            if attempt == TRIES or (isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404)):
                kept = f"{part.stat().st_size} bytes are kept for the next try" if part.exists() else "nothing came"
                raise Problem(url, None, f"could not be downloaded: {error}; {kept}") from None
            time.sleep(2.0 * attempt)


def _resume(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there is nothing after what we have: the checksum tells
            return
        raise
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        expected = int(answer.headers.get("Content-Length") or -1)
        before = file.tell()
        shutil.copyfileobj(answer, file, CHUNK_BYTES)
        if expected >= 0 and file.tell() - before != expected:
            raise ConnectionError(f"the connection ended after {file.tell() - before} of {expected} bytes")


def check(folder: Path) -> str:
    """Reads every annotation and every image of both parts, so that a damaged one is named now."""
    said = []
    for part in ("train", "val"):
        scenes, problems = Scenes(folder, part), []
        for place in range(len(scenes)):
            try:
                scenes[place]
            except Problem as problem:
                problems.append(problem)
        report(folder, problems)
        said.append(f"{part}: {len(scenes)} images, {len(scenes.content['annotations'])} objects")
    return "; ".join(said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["drawn", "coco2017"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--zips", type=Path, default=Path("zips"))  # where the zip files of COCO are, or go
    parser.add_argument("--train", type=int, default=TRAIN)  # drawn scenes to learn from
    parser.add_argument("--val", type=int, default=VAL)  # and to judge by
    parser.add_argument("--side", type=int, default=SIDE)  # pixels of a drawn scene
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with told():
        if args.kind == "drawn":
            draw(args.folder, args.train, args.val, args.seed, args.side)
        else:
            unpacked(args.zips, args.folder)
        print(json.dumps({"folder": str(args.folder), "found": check(args.folder)}))

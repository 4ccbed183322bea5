"""A folder of images as arrays: `train/` and `validation/`, and in both a folder for each class."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from download import SETS, download
from draw import draw
from PIL import Image
from problem import Problem, report

KINDS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


class Images(NamedTuple):
    pixels: np.ndarray  # images, rows, columns, colours: bytes, since most sets fit into memory that way
    labels: np.ndarray  # of each image the number of its class


class Data(NamedTuple):
    classes: list[str]
    train: Images
    validation: Images


def read_data(data: str, size: int, cache: Path) -> Data:
    """`drawn`, or `drawn:COUNT`; a name such as `horses_or_humans`, to be fetched; a folder.

    Every image is read before the training begins: one that is damaged is told of now and not in the tenth hour.
    """
    if data.partition(":")[0] == "drawn":
        folder = draw(cache, data)
    elif data in SETS:
        folder = download(SETS[data], cache / data)
    else:
        folder = Path(data)
    if not folder.is_dir():
        raise Problem(
            folder, None, f"there is no such folder, nor a set of that name; known are drawn, {', '.join(SETS)}"
        )
    classes = _classes(folder / "train")
    if (others := _classes(folder / "validation")) != classes:
        raise Problem(folder, None, f"train has the classes {', '.join(classes)}, but validation {', '.join(others)}")
    return Data(classes, *(_read(folder / part, classes, size) for part in ("train", "validation")))


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise Problem(
            folder, None, "there is no such folder; expected train/ and validation/ with a folder for each class"
        )
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(found) < 2:
        raise Problem(
            folder, None, f"has {f'one class, {found[0]}' if found else 'no class'}; expected two or more folders"
        )
    return found


def _read(folder: Path, classes: list[str], size: int) -> Images:
    pixels, labels, problems = [], [], []
    for label, name in enumerate(classes):
        files = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in KINDS)
        if not files:
            problems.append(
                Problem(folder / name, None, f"holds no image; expected files ending in {', '.join(KINDS)}")
            )
        for path in files:
            try:
                pixels.append(_pixels(path, size))
                labels.append(label)
            except Problem as problem:
                problems.append(problem)
    report(folder, problems)
    return Images(np.stack(pixels), np.array(labels, np.int32))


def _pixels(path: Path, size: int) -> np.ndarray:
    if not path.stat().st_size:
        raise Problem(path, None, "is empty")
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    except Exception as error:  # a damaged image raises nearly anything
        raise Problem(path, None, f"is no image that can be read: {error}") from None

"""A folder of images as tensors: `train/` and `val/`, and in both a folder for each class."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from draw import draw
from PIL import Image, ImageOps
from problem import Problem, report
from torch import Tensor
from torch.nn import functional

KINDS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, with which backbones are pretrained
MARGIN = 8 / 7  # images are kept this much larger than the network sees them, as 256 is to 224


class Images(NamedTuple):
    pixels: Tensor  # images, colours, rows, columns: bytes, since most sets fit into memory that way
    labels: Tensor  # of each image the number of its class
    files: list[Path]


def find(data: str, cache: Path) -> Path:
    """The folder that `data` names; `drawn` is made first."""
    folder = draw(cache / "drawn") if data == "drawn" else Path(data)
    if not folder.is_dir():
        raise Problem(folder, None, "there is no such folder; expected `drawn`, or a folder with train/ and val/")
    return folder


def classes_of(folder: Path) -> list[str]:
    """Both parts must have the same."""
    found, others = (_classes(folder / part) for part in ("train", "val"))
    if found != others:
        raise Problem(folder, None, f"train has the classes {', '.join(found)}, but val {', '.join(others)}")
    return found


def _classes(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise Problem(folder, None, "there is no such folder; expected train/ and val/ with a folder for each class")
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(found) < 2:
        has = f"one class, {found[0]}" if found else "no class"
        raise Problem(folder, None, f"has {has}; expected two or more folders")
    return found


def read(folder: Path, classes: list[str], size: int, most: int = 0) -> Images:
    """`most` of each class; 0: all. Every image is read at once, so that a damaged one is named before the training
    starts and not in its tenth hour."""
    files, labels, pixels, problems = [], [], [], []
    for label, name in enumerate(classes):
        inside = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in KINDS)
        if not inside:
            problems.append(Problem(folder / name, None, f"has no image; expected files ending in {', '.join(KINDS)}"))
        for path in inside[: most or None]:
            try:
                pixels.append(_pixels(path, round(size * MARGIN)))
                files.append(path)
                labels.append(label)
            except Problem as problem:
                problems.append(problem)
    report(folder, problems)
    return Images(torch.stack(pixels), torch.tensor(labels), files)


def _pixels(path: Path, side: int) -> Tensor:
    """The middle of the image, `side` pixels each way."""
    if not path.stat().st_size:
        raise Problem(path, None, "is empty")
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
            square = ImageOps.fit(upright, (side, side), Image.Resampling.BILINEAR)
    except Exception as error:  # a damaged image raises nearly anything
        raise Problem(path, None, f"cannot be read as an image: {error}") from None
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def varied(pixels: Tensor, size: int, chance: torch.Generator) -> Tensor:
    """A part of each image, from 30 % of its area on, at a random place, mirrored or not."""
    count = len(pixels)

    def draws(least: float, most: float) -> Tensor:
        return torch.rand(count, generator=chance) * (most - least) + least

    area, shape, mirror = draws(0.3, 1.0), draws(-0.3, 0.3).exp(), draws(-1, 1).sign()
    wide, high = ((area * way).sqrt().clamp(max=1) for way in (shape, 1 / shape))
    right, down = (draws(-1, 1) * (1 - part) for part in (wide, high))
    theta = torch.zeros(count, 2, 3)
    theta[:, 0, 0], theta[:, 0, 2], theta[:, 1, 1], theta[:, 1, 2] = mirror * wide, right, high, down
    grid = functional.affine_grid(theta, [count, 3, size, size], align_corners=False)
    return functional.grid_sample(normal(pixels), grid, padding_mode="reflection", align_corners=False)


def middle(pixels: Tensor, size: int) -> Tensor:
    """What is judged: the middle of each image."""
    edge = (pixels.shape[-1] - size) // 2
    return normal(pixels[..., edge : edge + size, edge : edge + size])


def normal(pixels: Tensor) -> Tensor:
    mean, spread = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, SPREAD))
    return (pixels.float() / 255 - mean) / spread

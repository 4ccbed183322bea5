"""Draws scenes in COCO's format: discs, squares and triangles on a restless ground, small ones, and crowds."""

import json
import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from folder import appearing
from PIL import Image, ImageDraw
from problem import Problem
from pycocotools import mask as masks

KINDS = {"disc": 24, "square": 4, "triangle": 3}  # corners
SIDE = 128  # pixels
TRAIN, VAL = 240, 60
SMALL = 0.25  # of the objects
Point = tuple[float, float]


class Shape(NamedTuple):
    kind: str
    x: float
    y: float
    radius: float
    outline: list[Point]


def draw(folder: Path, train: int = TRAIN, val: int = VAL, seed: int = 1, side: int = SIDE) -> Path:
    """`images/` and `annotations/` with `train` and `val`. `folder` appears when it is complete."""
    if min(train, val) < 1:
        raise Problem(folder, None, f"{train} and {val} scenes; expected 1 or more of each, such as {TRAIN} and {VAL}")
    if folder.is_dir():
        return folder
    with appearing(folder) as place:
        (place / "annotations").mkdir()
        for part, count in (("train", train), ("val", val)):
            (place / "images" / part).mkdir(parents=True)
            chance = random.Random(f"{seed} {part}")
            found = _part(place / "images" / part, count, chance, side)
            (place / "annotations" / f"instances_{part}.json").write_text(json.dumps(found), encoding="utf-8")
    return folder


def _part(folder: Path, count: int, chance: random.Random, side: int) -> dict[str, Any]:
    names = list(KINDS)
    categories = [{"id": number + 1, "name": name, "supercategory": "shape"} for number, name in enumerate(names)]
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        image, shapes, crowd = scene(chance, side)
        name = f"{number:06}.png"
        image.save(folder / name)
        images.append({"id": number, "file_name": name, "width": side, "height": side})
        for shape in shapes:
            outline = [round(value, 2) for point in shape.outline for value in point]
            annotations.append(_annotation([outline], number, names.index(shape.kind) + 1, side))
        if crowd:
            annotations.append(_crowd(crowd, number, names.index(crowd[0].kind) + 1, side))
    for number, annotation in enumerate(annotations):
        annotation["id"] = number + 1
    return {"images": images, "annotations": annotations, "categories": categories}


def scene(chance: random.Random, side: int) -> tuple[Image.Image, list[Shape], list[Shape]]:
    """The picture, its objects, and in one of six scenes a crowd that is annotated as one."""
    image = Image.new("RGB", (side, side), _colour(chance, 30, 110))
    pen = ImageDraw.Draw(image)
    for _ in range(8):
        ends = [chance.uniform(0, side) for _ in range(4)]
        pen.line(ends, _colour(chance, 30, 130), 2)
    shapes: list[Shape] = []
    for _ in range(chance.randint(2, 5)):
        small = chance.random() < SMALL
        shape = _shape(chance, side, *((0.05, 0.08) if small else (0.1, 0.2)), chance.choice(list(KINDS)))
        if _free(shape, shapes):
            shapes.append(shape)
    crowd: list[Shape] = []
    if chance.random() < 1 / 6:
        kind = chance.choice(list(KINDS))
        near = [_shape(chance, side / 2, 0.06, 0.1, kind) for _ in range(6)]
        crowd = [shape for shape in near if _free(shape, shapes)]
    for shape in [*shapes, *crowd]:
        pen.polygon(shape.outline, _colour(chance, 130, 256))
    return image, shapes, crowd


def _shape(chance: random.Random, side: float, least: float, most: float, kind: str) -> Shape:
    radius = chance.uniform(least, most) * side
    x, y = (chance.uniform(radius, side - 1 - radius) for _ in range(2))
    turn, corners = chance.uniform(0, 2 * math.pi), KINDS[kind]
    angles = [turn + 2 * math.pi * corner / corners for corner in range(corners)]
    return Shape(kind, x, y, radius, [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles])


def _free(shape: Shape, others: list[Shape]) -> bool:
    """They may touch: one hides a little of another, as in photos."""
    return all(math.dist(shape[1:3], other[1:3]) > 0.9 * (shape.radius + other.radius) for other in others)


def _annotation(outlines: list[list[float]], image: int, category: int, side: int) -> dict[str, Any]:
    packed = masks.merge(masks.frPyObjects(outlines, side, side))
    return {
        "image_id": image,
        "category_id": category,
        "segmentation": outlines,
        "bbox": [float(value) for value in masks.toBbox(packed)],
        "area": float(masks.area(packed)),
        "iscrowd": 0,
    }


def _crowd(shapes: list[Shape], image: int, category: int, side: int) -> dict[str, Any]:
    """As COCO writes crowds: one mask for all, in run lengths that are not packed."""
    canvas = Image.new("L", (side, side))
    for shape in shapes:
        ImageDraw.Draw(canvas).polygon(shape.outline, 1)
    pixels = np.array(canvas).flatten(order="F")
    starts = np.flatnonzero(np.diff(np.concatenate(([0], pixels)))).tolist()
    counts = np.diff([0, *starts, len(pixels)]).tolist()
    rows, columns = (np.flatnonzero(np.asarray(canvas).any(axis=axis)) for axis in (1, 0))
    left, top = int(columns[0]), int(rows[0])
    return {
        "image_id": image,
        "category_id": category,
        "segmentation": {"size": [side, side], "counts": counts},
        "bbox": [left, top, int(columns[-1]) - left + 1, int(rows[-1]) - top + 1],
        "area": int(pixels.sum()),
        "iscrowd": 1,
    }


def _colour(chance: random.Random, darkest: int, brightest: int) -> tuple[int, int, int]:
    red, green, blue = (chance.randrange(darkest, brightest) for _ in range(3))
    return red, green, blue

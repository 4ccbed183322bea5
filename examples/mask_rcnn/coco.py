"""A dataset in COCO's format: `images/PART/` and `annotations/instances_PART.json`."""

import difflib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from problem import Problem, report
from pycocotools import mask as masks
from scenes import draw
from torch import Tensor

BEYOND = 2.0  # pixels that an outline may reach beyond its image: annotators round
MOST_TOLD = 20  # problems of one file
Target = dict[str, Tensor]


def find(data: str, cache: Path) -> Path:
    """The folder that `data` names; `drawn` is made first."""
    folder = draw(cache / "drawn") if data == "drawn" else Path(data)
    if not folder.is_dir():
        raise Problem(folder, None, "there is no such folder; expected `drawn`, or what prepare.py makes")
    return folder


class Scenes(torch.utils.data.Dataset[tuple[Tensor, Target]]):
    """The images of one part. With `here_only` those that are in the folder, as with `shard: true`."""

    def __init__(self, folder: Path, part: str, images: Path | None = None, here_only: bool = False) -> None:
        inside = folder / "annotations"  # with `images` elsewhere, `folder` may be the annotations alone
        self.file = (folder if images and not inside.is_dir() else inside) / f"instances_{part}.json"
        self.folder = (images or folder / "images") / part
        self.content = _read(self.file)
        self.classes = {c["id"]: c["name"] for c in self.content["categories"]}
        self.numbers = {number: label + 1 for label, number in enumerate(sorted(self.classes))}  # 0 is the background
        self.total = len(self.content["images"])
        self._check()
        self.images = self._present(here_only)
        self.by_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for annotation in self.content["annotations"]:
            self.by_image[annotation["image_id"]].append(annotation)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Tensor, Target]:
        record = self.images[place]
        return self.picture(record), self._target(record)

    def picture(self, record: dict[str, Any]) -> Tensor:
        path = self.folder / record["file_name"]
        pixels = picture(path)
        if pixels.shape[1:] != (record["height"], record["width"]):
            found = f"{pixels.shape[2]} by {pixels.shape[1]} pixels"
            raise Problem(path, None, f"has {found}; {self.file.name} says {record['width']} by {record['height']}")
        return pixels

    def _target(self, record: dict[str, Any]) -> Target:
        """Its objects; a crowd is no single object, so nothing is learned from it."""
        high, wide = record["height"], record["width"]
        boxes, labels, seen = [], [], []
        for annotation in self.by_image[record["id"]]:
            if annotation.get("iscrowd"):
                continue
            mask = _mask(annotation["segmentation"], high, wide)
            if not mask.any():  # smaller than a pixel
                continue
            rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
            boxes.append([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])
            labels.append(self.numbers[annotation["category_id"]])
            seen.append(mask)
        return {
            "boxes": torch.tensor(np.array(boxes), dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor(labels, dtype=torch.int64),
            "masks": torch.from_numpy(np.array(seen, dtype=np.uint8).reshape(-1, high, wide)),
        }

    def _present(self, here_only: bool) -> list[dict[str, Any]]:
        if not self.folder.is_dir():
            raise Problem(self.folder, None, f"there is no such folder; {self.file.name} names images in it")
        there = {path.name for path in self.folder.iterdir()}
        missing = [record for record in self.content["images"] if record["file_name"] not in there]
        if missing and not here_only:
            some = [self.folder / record["file_name"] for record in missing[:MOST_TOLD]]
            report(self.folder, [Problem(path, None, "is missing") for path in some])
        found = [record for record in self.content["images"] if record["file_name"] in there]
        if not found:
            raise Problem(self.folder, None, f"has no image that {self.file.name} names")
        return found

    def _check(self) -> None:
        records = {record["id"]: record for record in self.content["images"]}
        problems = []
        for annotation in self.content["annotations"]:
            what = self._wrong(annotation, records)
            if what:
                problems.append(Problem(self.file, None, f"annotation {annotation.get('id')}: {what}"))
        report(self.file, problems[:MOST_TOLD])

    def _wrong(self, annotation: dict[str, Any], records: dict[int, dict[str, Any]]) -> str | None:
        category, image = annotation.get("category_id"), annotation.get("image_id")
        if category not in self.classes:
            near = difflib.get_close_matches(str(category), map(str, self.classes), 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            return f"category {category} is not listed in `categories` ({_some(self.classes)}){hint}"
        if image not in records:
            return f"image {image} is not listed in `images`"
        outlines = annotation.get("segmentation")
        if isinstance(outlines, dict):
            return _wrong_lengths(outlines, records[image])
        if not isinstance(outlines, list) or not outlines:
            return f"segmentation is {str(outlines)[:40]}; expected polygons, or run lengths"
        return next(filter(None, (_wrong_outline(outline, records[image]) for outline in outlines)), None)


def _read(file: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Problem(file, None, "there is no such file; expected annotations in COCO's format") from None
    except ValueError as error:
        raise Problem(file, getattr(error, "lineno", None), f"cannot be read as JSON: {error}") from None
    for name in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise Problem(file, None, f"has no list `{name}`; expected annotations in COCO's format")
        if not content[name] and name != "annotations":
            raise Problem(file, None, f"the list `{name}` is empty")
    return dict(content)


def _wrong_outline(outline: Any, record: dict[str, Any]) -> str | None:
    if not isinstance(outline, list) or len(outline) < 6 or len(outline) % 2:
        return (
            f"a polygon has {len(outline) if isinstance(outline, list) else 0} numbers; expected three points or more"
        )
    for name, values, most in (("x", outline[::2], record["width"]), ("y", outline[1::2], record["height"])):
        bad = [value for value in values if not -BEYOND <= value <= most + BEYOND]
        if bad:
            return f"a polygon is outside of its image {record['file_name']}: {name} is {bad[0]}, expected 0 to {most}"
    return None


def _wrong_lengths(lengths: dict[str, Any], record: dict[str, Any]) -> str | None:
    size = [record["height"], record["width"]]
    if lengths.get("size") != size:
        return f"its mask has the size {lengths.get('size')}; its image {record['file_name']} has {size}"
    counts = lengths.get("counts")
    if isinstance(counts, list) and sum(counts) != size[0] * size[1]:
        return f"its run lengths count {sum(counts)} pixels; its image has {size[0] * size[1]}"
    return None if isinstance(counts, list | str) else "its mask has no run lengths (`counts`)"


def _mask(segmentation: Any, high: int, wide: int) -> np.ndarray[Any, Any]:
    """Polygons, or run lengths, packed or not."""
    if isinstance(segmentation, list):
        packed = masks.merge(masks.frPyObjects(segmentation, high, wide))
    elif isinstance(segmentation["counts"], list):
        packed = masks.frPyObjects(segmentation, high, wide)
    else:
        packed = segmentation
    return np.asarray(masks.decode(packed), dtype=bool)


def picture(path: Path) -> Tensor:
    """Colours, rows, columns, from 0 to 1."""
    try:
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
    except Exception as error:  # a damaged image raises nearly anything
        raise Problem(path, None, f"cannot be read as an image: {error}") from None
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def _some(classes: dict[int, str]) -> str:
    named = [f"{number}: {name}" for number, name in sorted(classes.items())]
    return ", ".join(named[:8]) + (", …" if len(named) > 8 else "")

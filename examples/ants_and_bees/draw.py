"""Draws ants and bees of a few strokes: no two alike, and neither colour nor place tells them apart."""

import argparse
import math
import random
import shutil
from pathlib import Path

from PIL import Image, ImageDraw
from problem import Problem, told

SIDE = 128  # pixels of a drawn image
TRAIN, VAL = 120, 60  # images, half of each class
Point = tuple[float, float]


def draw(folder: Path, count: int = TRAIN, seed: int = 1) -> Path:
    """`train/` and `val/`, and in both a folder for each class. `folder` appears when it is complete."""
    if count < 2:
        raise Problem(folder, None, f"{count} images cannot have two classes; expected 2 or more, such as {TRAIN}")
    if folder.is_dir():
        return folder
    chance = random.Random(seed)
    partial = folder.with_name(f".{folder.name}-{random.SystemRandom().randrange(1 << 32):08x}")
    try:
        for part, images in (("train", count), ("val", max(2, count * VAL // TRAIN))):
            for number in range(images):
                kind = ("ants", "bees")[number % 2]
                path = partial / part / kind / f"{number:05}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                picture(kind, chance).save(path)
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def picture(kind: str, chance: random.Random) -> Image.Image:
    """Twice as large at first, so that its edges are smooth."""
    side = 2 * SIDE
    image = Image.new("RGB", (side, side), _colour(chance, 120, 256))
    pen = ImageDraw.Draw(image)
    for _ in range(chance.randint(3, 8)):  # leaves and stones
        x, y, wide, high = (chance.uniform(-0.1, 1) * side for _ in range(4))
        pen.ellipse((x, y, x + abs(wide) / 2, y + abs(high) / 2), _colour(chance, 120, 256))
    insect = Insect(pen, chance, side)
    (insect.ant if kind == "ants" else insect.bee)()
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


class Insect:
    """Seen from above. Its own coordinates: x along its body from -1 to 1, y across."""

    def __init__(self, pen: ImageDraw.ImageDraw, chance: random.Random, side: int) -> None:
        self._pen, self._chance = pen, chance
        self._scale = chance.uniform(0.28, 0.45) * side
        self._x, self._y = (chance.uniform(0.4, 0.6) * side for _ in range(2))
        self._turn = chance.uniform(0, 2 * math.pi)
        self._body, self._light = _colour(chance, 0, 90), _colour(chance, 90, 200)

    def ant(self) -> None:
        self._limbs(thin=0.05, reach=0.75)
        self._oval(-0.6, 0, 0.36, 0.24, self._body)
        self._oval(0.05, 0, 0.22, 0.13, self._body)
        self._oval(0.55, 0, 0.22, 0.19, self._body)

    def bee(self) -> None:
        self._limbs(thin=0.05, reach=0.5)
        self._oval(-0.4, 0, 0.52, 0.34, self._body)
        for at in (-0.7, -0.45, -0.2):
            self._line((at, -0.26), (at, 0.26), 0.09, self._light)
        self._oval(0.2, 0, 0.28, 0.28, self._body)
        self._oval(0.6, 0, 0.2, 0.2, self._body)
        wing = _colour(self._chance, 170, 250)
        for way in (-1, 1):
            self._oval(-0.1, way * 0.45, 0.42, 0.17, wing, lean=way * 0.7)

    def _limbs(self, thin: float, reach: float) -> None:
        for at, lean in ((-0.1, -0.3), (0.05, 0.0), (0.2, 0.3)):
            for way in (-1, 1):
                knee = (at + lean, way * reach * self._chance.uniform(0.55, 0.7))
                self._line((at, 0), knee, thin, self._body)
                self._line(knee, (at + 1.6 * lean, way * reach), thin, self._body)
        for way in (-1, 1):
            self._line((0.65, 0), (0.95, way * self._chance.uniform(0.15, 0.3)), thin, self._body)

    def _line(
        self, start: tuple[float, float], end: tuple[float, float], thick: float, colour: tuple[int, ...]
    ) -> None:
        self._pen.line([self._place(*start), self._place(*end)], colour, max(1, round(thick * self._scale)))

    def _oval(self, x: float, y: float, long: float, wide: float, colour: tuple[int, ...], lean: float = 0.0) -> None:
        points = []
        for step in range(32):
            angle = step / 32 * 2 * math.pi
            along, across = long * math.cos(angle), wide * math.sin(angle)
            turned = (
                x + along * math.cos(lean) - across * math.sin(lean),
                y + along * math.sin(lean) + across * math.cos(lean),
            )
            points.append(self._place(*turned))
        self._pen.polygon(points, colour)

    def _place(self, x: float, y: float) -> Point:
        cos, sin = math.cos(self._turn), math.sin(self._turn)
        return self._x + self._scale * (x * cos - y * sin), self._y + self._scale * (x * sin + y * cos)


def _colour(chance: random.Random, darkest: int, brightest: int) -> tuple[int, int, int]:
    red, green, blue = (chance.randrange(darkest, brightest) for _ in range(3))
    return red, green, blue


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=TRAIN)  # images to learn from; half as many to validate with
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with told():
        print(draw(args.folder, args.count, args.seed))

"""Draws horses and humans of a few strokes: no two alike, and not to be told apart by a colour or a place."""

import argparse
import math
import random
from pathlib import Path

from folder import appearing
from PIL import Image, ImageDraw
from problem import Problem, told

SIDE = 96  # pixels of a drawn image
TRAIN, VALIDATION = 480, 160  # images, half of each class
FIGURES = {  # strokes from joint to joint, in a square of one by one, and how thick they are
    "horses": (
        ((0.25, 0.50), (0.68, 0.50), 0.20),  # the body
        ((0.68, 0.48), (0.80, 0.26), 0.10),  # the neck
        ((0.80, 0.26), (0.95, 0.34), 0.09),  # the head
        ((0.25, 0.52), (0.20, 0.88), 0.06),
        ((0.32, 0.54), (0.34, 0.88), 0.06),
        ((0.60, 0.54), (0.58, 0.88), 0.06),
        ((0.68, 0.52), (0.72, 0.88), 0.06),
        ((0.22, 0.46), (0.08, 0.66), 0.04),  # the tail
    ),
    "humans": (
        ((0.50, 0.14), (0.50, 0.15), 0.17),  # the head
        ((0.50, 0.28), (0.50, 0.56), 0.17),  # the body
        ((0.46, 0.30), (0.26, 0.52), 0.06),
        ((0.54, 0.30), (0.74, 0.52), 0.06),
        ((0.46, 0.56), (0.40, 0.94), 0.07),
        ((0.54, 0.56), (0.60, 0.94), 0.07),
    ),
}


def draw(cache: Path, name: str = "drawn", seed: int = 1) -> Path:
    """The folder with the set, which appears when it is complete. `drawn:60` has 60 images to learn from."""
    count = name.partition(":")[2] or str(TRAIN)
    if not count.isdecimal() or int(count) < 2:
        raise Problem(name, None, f"`{count}` is no number of images; expected 2 or more, such as drawn:{TRAIN}")
    folder = cache / f"drawn-{count}-{seed}"
    if folder.is_dir():
        return folder
    chance = random.Random(seed)
    with appearing(folder) as place:
        for part, images in (("train", int(count)), ("validation", max(2, int(count) * VALIDATION // TRAIN))):
            for number in range(images):
                kind = list(FIGURES)[number % 2]
                path = place / part / kind / f"{number:05}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                picture(kind, chance).save(path)
    return folder


def picture(kind: str, chance: random.Random) -> Image.Image:
    """Twice as large at first, so that its edges are smooth."""
    side = 2 * SIDE
    image = Image.new("RGB", (side, side), _colour(chance, 160, 256))
    pen = ImageDraw.Draw(image)
    for _ in range(chance.randint(2, 5)):  # hills, clouds, whatever: what is behind says nothing
        x, y, wide, high = (chance.uniform(-0.2, 1) * side for _ in range(4))
        pen.ellipse((x, y, x + abs(wide), y + abs(high)), _colour(chance, 160, 256))
    figure, scale = _colour(chance, 0, 100), chance.uniform(0.7, 0.95) * side
    left, top = (chance.uniform(0, side - scale) for _ in range(2))
    turned, mirrored, stiff = chance.uniform(-0.2, 0.2), chance.random() < 0.5, 0.03
    for start, end, thick in FIGURES[kind]:
        joints = []
        for x, y in (start, end):
            x, y = (1 - x if mirrored else x) - 0.5 + chance.gauss(0, stiff), y - 0.5 + chance.gauss(0, stiff)
            x, y = x * math.cos(turned) - y * math.sin(turned), x * math.sin(turned) + y * math.cos(turned)
            joints.append((left + (x + 0.5) * scale, top + (y + 0.5) * scale))
        _stroke(pen, joints, thick * scale, figure)
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def _stroke(pen: ImageDraw.ImageDraw, joints: list[tuple[float, float]], thick: float, colour: tuple[int, ...]) -> None:
    pen.line(joints, colour, round(thick))
    for x, y in joints:
        pen.ellipse((x - thick / 2, y - thick / 2, x + thick / 2, y + thick / 2), colour)


def _colour(chance: random.Random, darkest: int, brightest: int) -> tuple[int, int, int]:
    red, green, blue = (chance.randrange(darkest, brightest) for _ in range(3))
    return red, green, blue


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--count", type=int, default=TRAIN
    )  # images to learn from; a third as many more to be judged by
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with told():
        print(draw(args.folder, f"drawn:{args.count}", args.seed))

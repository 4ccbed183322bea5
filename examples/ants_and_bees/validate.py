"""How good a trained model is: its accuracy, which classes it confuses, and a sheet of images with its answers."""

import argparse
import json
from pathlib import Path

import torch
from backbone import Model, load
from images import Images, classes_of, find, middle, read
from PIL import Image, ImageDraw
from problem import Problem, told
from torch import Tensor

SIDE, COLUMNS = 144, 6  # of the sheet: pixels of an image, images in a row
RIGHT, WRONG = (30, 130, 60), (190, 40, 40)


@torch.inference_mode()
def answers(model: Model, images: Images) -> Tensor:
    """Of each image the probability of each class."""
    parts = [model.network(middle(some, model.image_size)) for some in images.pixels.split(64)]
    return torch.cat(parts).softmax(1)


def confusion(labels: Tensor, found: Tensor, classes: int) -> list[list[int]]:
    """Rows: what an image shows; columns: what the model says."""
    return torch.bincount(labels * classes + found, minlength=classes * classes).view(classes, classes).tolist()


def table(counts: list[list[int]], classes: list[str]) -> str:
    wide = max(map(len, classes), default=0) + 2
    head = " " * wide + "".join(name.rjust(wide) for name in classes) + "   <- predicted"
    named = zip(classes, counts, strict=True)
    return "\n".join([head, *(name.ljust(wide) + "".join(str(n).rjust(wide) for n in row) for name, row in named)])


def sheet(images: Images, shares: Tensor, classes: list[str], most: int) -> Image.Image:
    """Mistakes first, then the others, spread evenly over the set."""
    found = shares.argmax(1)
    wrong = (found != images.labels).nonzero().flatten().tolist()
    right = (found == images.labels).nonzero().flatten().tolist()
    wanted = max(most - len(wrong), most // 2) if wrong else most
    shown = [*wrong[: most - min(wanted, len(right))], *right[:: max(1, len(right) // max(1, wanted))][:wanted]]
    rows = -(-len(shown) // COLUMNS)
    canvas = Image.new("RGB", (COLUMNS * (SIDE + 8) + 8, rows * (SIDE + 28) + 8), "white")
    pen = ImageDraw.Draw(canvas)
    for place, number in enumerate(shown):
        x, y = 8 + place % COLUMNS * (SIDE + 8), 8 + place // COLUMNS * (SIDE + 28)
        pixels = images.pixels[number].permute(1, 2, 0).numpy()
        canvas.paste(Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR), (x, y))
        name, share = classes[int(found[number])], float(shares[number].max())
        colour = RIGHT if int(found[number]) == int(images.labels[number]) else WRONG
        pen.rectangle((x, y, x + SIDE - 1, y + SIDE - 1), outline=colour, width=3)
        pen.text((x, y + SIDE + 4), f"predicted: {name} {share:.0%}", fill=colour)
    return canvas


def validate(path: Path, data: str, cache: Path, outputs: Path, most: int) -> None:
    model = load(path)
    folder = find(data, cache)
    if (classes := classes_of(folder)) != model.classes:
        raise Problem(folder, None, f"has the classes {', '.join(classes)}; the model knows {', '.join(model.classes)}")
    images = read(folder / "val", classes, model.image_size)
    shares = answers(model, images)
    counts = confusion(images.labels, shares.argmax(1), len(classes))
    right = sum(counts[one][one] for one in range(len(classes)))
    result = {"accuracy": right / len(images.labels), "classes": classes, "confusion": counts}
    outputs.mkdir(parents=True, exist_ok=True)
    (outputs / "validation.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sheet(images, shares, classes, most).save(outputs / "predictions.png")
    print(table(counts, classes))
    print(f"accuracy {result['accuracy']:.4f} on {len(images.labels)} images; see {outputs / 'predictions.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)  # model.safetensors of train.py
    parser.add_argument("--data", default="drawn")  # or a folder with train/ and val/
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-ants-and-bees"))
    parser.add_argument("--show", type=int, default=24)  # images on the sheet
    parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()
    with told():
        validate(args.model, args.data, args.cache.expanduser(), args.output_dir, args.show)

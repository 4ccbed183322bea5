"""Finds objects in photos: draws their boxes, masks and scores. A folder of photos becomes a page."""

import argparse
import base64
import html
import io
from pathlib import Path
from typing import Any, NamedTuple

import torch
from coco import picture
from network import Model, device, load
from PIL import Image, ImageDraw
from problem import Problem, told

KINDS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
COLOURS = ((230, 60, 60), (40, 130, 220), (30, 160, 90), (220, 140, 20), (150, 80, 200), (20, 160, 170))
LARGEST = 1024  # pixels of a photo on the page


class Found(NamedTuple):
    name: str
    score: float
    box: tuple[float, float, float, float]
    mask: Any  # rows, columns: whether the pixel belongs to it


@torch.inference_mode()
def objects(model: Model, photo: Path, least: float) -> list[Found]:
    """Best first."""
    result = model.network([picture(photo).to(device())])[0]
    found = []
    for label, score, box, soft in zip(
        result["labels"].tolist(), result["scores"].tolist(), result["boxes"].tolist(), result["masks"], strict=True
    ):
        if score >= least:
            found.append(Found(model.classes[label - 1], score, tuple(box), (soft[0] > 0.5).cpu().numpy()))
    return found


def drawn(photo: Path, found: list[Found]) -> Image.Image:
    with Image.open(photo) as opened:
        image = opened.convert("RGB")
    for number, one in reversed(list(enumerate(found))):
        colour = COLOURS[number % len(COLOURS)]
        mask = Image.fromarray((one.mask * 120).astype("uint8"))
        image.paste(Image.new("RGB", image.size, colour), (0, 0), mask)
    pen = ImageDraw.Draw(image)
    for number, one in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        pen.rectangle(one.box, outline=colour, width=max(1, image.width // 300))
        pen.text((one.box[0] + 2, max(0.0, one.box[1] - 11)), f"{one.name} {one.score:.2f}", fill=colour)
    return image


def page(title: str, shown: list[tuple[str, Image.Image, list[Found]]]) -> str:
    """One file with everything in it."""
    figures = []
    for name, image, found in shown:
        image.thumbnail((LARGEST, LARGEST))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        said = ", ".join(f"{one.name} {one.score:.2f}" for one in found) or "nothing found"
        source = base64.b64encode(buffer.getvalue()).decode()
        figures.append(
            f'<figure><img src="data:image/png;base64,{source}" alt="{html.escape(name)}">'
            f"<figcaption><b>{html.escape(name)}</b><br>{html.escape(said)}</figcaption></figure>"
        )
    style = (
        "body{font:15px system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
        "main{display:grid;gap:1.2rem;grid-template-columns:repeat(auto-fill,minmax(16rem,1fr))}"
        "figure{margin:0}img{width:100%;border-radius:6px}"
        "@media(prefers-color-scheme:dark){body{background:#15171a;color:#ddd}}"
    )
    head = "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    named = html.escape(title)
    body = f"<h1>{named}</h1><main>{''.join(figures)}</main>"
    return f"{head}<title>{named}</title><style>{style}</style>{body}</html>\n"


def predict(path: Path, photos: Path, least: float, outputs: Path) -> None:
    model = load(path)
    model.network.to(device())
    files = sorted(f for f in photos.iterdir() if f.suffix.lower() in KINDS) if photos.is_dir() else [photos]
    if not files:
        raise Problem(photos, None, f"has no photo; expected files ending in {', '.join(KINDS)}")
    outputs.mkdir(parents=True, exist_ok=True)
    shown = []
    for file in files:
        found = objects(model, file, least)
        image = drawn(file, found)
        image.save(outputs / f"{file.stem}-objects.png")
        said = ", ".join(f"{one.name} {one.score:.2f}" for one in found) or "nothing found"
        print(f"{file.name}: {said}")
        shown.append((file.name, image, found))
    if photos.is_dir():
        (outputs / "photos.html").write_text(page(f"{photos.name}: {len(files)} photos", shown), encoding="utf-8")
        print(f"the page is {outputs / 'photos.html'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)  # model.safetensors of train.py
    parser.add_argument("photos", type=Path)  # a photo, or a folder of them
    parser.add_argument("--least", type=float, default=0.5)  # the lowest score that is shown
    parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()
    with told():
        predict(args.model, args.photos, args.least, args.output_dir)

"""How good a trained model is: COCO's average precision of boxes and masks, by pycocotools."""

import argparse
import contextlib
import copy
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from coco import Scenes, find
from network import device, load
from problem import told
from pycocotools import mask as masks
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from ranks import RANK, WORLD, gather, together
from torch import nn

NAMES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")  # as COCOeval counts them


@torch.inference_mode()
def detections(network: nn.Module, scenes: Scenes) -> list[dict[str, Any]]:
    """In COCO's format, of this rank's share of the images."""
    network.eval()
    category = {label: number for number, label in scenes.numbers.items()}
    found: list[dict[str, Any]] = []
    for record in scenes.images[RANK::WORLD]:
        result = network([scenes.picture(record).to(device())])[0]
        for box, label, score, soft in zip(
            result["boxes"].tolist(), result["labels"].tolist(), result["scores"].tolist(), result["masks"], strict=True
        ):
            left, top, right, bottom = box
            packed = masks.encode(np.asfortranarray((soft[0] > 0.5).cpu().numpy().astype(np.uint8)))
            place = {"image_id": record["id"], "category_id": category[label], "score": score}
            found.append({**place, "bbox": [left, top, right - left, bottom - top], "segmentation": packed})
    return found


def precision(network: nn.Module, scenes: Scenes) -> dict[str, float]:
    """Average precision, by name; the ranks share the work, and all have the result."""
    found = [one for part in gather(detections(network, scenes)) for one in part]
    return {name: value for name, value in scores(scenes, found).items() if name in ("box_ap", "mask_ap")}


def scores(scenes: Scenes, found: list[dict[str, Any]]) -> dict[str, float]:
    """Every figure of COCO's table. Nothing found is 0, not an error."""
    result: dict[str, float] = {}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints a table of its own
        truth = COCO()
        truth.dataset = copy.deepcopy(_complete(scenes))
        truth.createIndex()
        guessed = truth.loadRes(found) if found else None
        for kind, prefix in (("bbox", "box"), ("segm", "mask")):
            if guessed is None:
                result |= {f"{prefix}_{name}": 0.0 for name in NAMES}
                continue
            evaluation = COCOeval(truth, guessed, kind)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
            result |= {f"{prefix}_{name}": float(value) for name, value in zip(NAMES, evaluation.stats, strict=False)}
    return result


def _complete(scenes: Scenes) -> dict[str, Any]:
    """What some files leave out, and COCOeval asks for."""
    for annotation in scenes.content["annotations"]:
        annotation.setdefault("iscrowd", 0)
    here = {record["id"] for record in scenes.images}
    kept = [one for one in scenes.content["annotations"] if one["image_id"] in here]
    return {"info": {}, **scenes.content, "images": scenes.images, "annotations": kept}


def evaluate(path: Path, data: str, cache: Path, outputs: Path) -> None:
    model = load(path)
    model.network.to(device())
    scenes = Scenes(find(data, cache), "val")
    found = scores(scenes, [one for part in gather(detections(model.network, scenes)) for one in part])
    if RANK == 0:
        outputs.mkdir(parents=True, exist_ok=True)
        (outputs / "evaluation.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        for kind in ("box", "mask"):
            print("  ".join(f"{kind}_{name} {found[f'{kind}_{name}']:.4f}" for name in NAMES))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)  # model.safetensors of train.py
    parser.add_argument("--data", default="drawn")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/stoker-mask-rcnn"))
    parser.add_argument("--output_dir", type=Path, default=Path("outputs"))
    args = parser.parse_args()
    with told(), together():
        evaluate(args.model, args.data, args.cache.expanduser(), args.output_dir)

"""Metrics in sentences and lines that one library or tutorial prints in exactly one way. Pure.

`Accuracy of the network on the 10000 test images: 54 %`, scikit-learn's `[CV 1/5] END … score=0.95`, COCO's summary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from stoker.agent.shipping.namedvalues import NUMBER, split_of


class Sentence(NamedTuple):
    shape: str
    values: Mapping[str, float]


_ABOUT = re.compile(
    r"(?:(?P<split>train\w*|val\w*|test|eval\w*) )?(?P<name>accuracy|loss|error|score|f1)(?: score)?"
    r" (?:of|on|for|over) (?P<what>[^:=%]{1,80}?)(?::? (?P<class>\w{1,40}) is| ?[:=]| is)"
    rf" {{0,4}}(?P<number>{NUMBER}) ?%?\.?",
    re.IGNORECASE,
)
_OF_ALL = {"model", "network", "net", "classifier", "data", "dataset", "set", "images", "samples", "image", "sample"}


def _about(text: str) -> Sentence | None:
    found = _ABOUT.fullmatch(text)
    if not found or ("." not in found["number"] and "%" not in text):
        return None
    name, what = found["name"].lower(), found["what"].strip()
    words = what.split()
    one_class = found["class"] if words[0].lower() == "class" or words[-1].lower() == "class" else None
    if not one_class and len(words) == 1 and words[0].lower() not in _OF_ALL and not split_of(what):
        one_class = words[0]
    if found["class"] and not one_class:
        return None
    if one_class:
        return Sentence("sentences", {f"{name}/{one_class}": float(found["number"])})
    split = split_of(found["split"] or "") or split_of(what)
    return Sentence("sentences", {f"{split}_{name}" if split else name: float(found["number"])})


_LOSSES = re.compile(rf"LOSS train (?P<train>{NUMBER}) val(?:id)?(?:ation)? (?P<val>{NUMBER})")


def _losses(text: str) -> Sentence | None:
    """As PyTorch's introduction prints them."""
    found = _LOSSES.fullmatch(text)
    return found and Sentence("sentences", {f"{name}_loss": float(one) for name, one in found.groupdict().items()})


_FOLD = re.compile(rf"\[CV[^\]]{{0,40}}\] (?:END )?.{{1,400}}?, ?score=(?:\(train=({NUMBER}), test=)?({NUMBER})")
_FOLDS = re.compile(r"\[CV[^\]]{0,40}\] (?:END )?.{1,400}?[, ] ?total(?: time)?=")


def _fold(text: str) -> Sentence | None:
    """One part of a cross-validation of scikit-learn."""
    if not text.startswith("[CV") or not _FOLDS.match(text) or not (found := _FOLD.match(text)):
        return None
    train = {"train_score": float(found[1])} if found[1] else {}
    return Sentence("scikit-learn's folds", {**train, "score": float(found[2])})


_COCO = re.compile(
    r"Average (?:Precision|Recall) {1,4}\((A[PR])\) @\[ IoU=([\d.:]{1,12}) {0,8}\| area= {0,8}(\w{1,8}) \|"
    rf" maxDets= {{0,8}}(\d{{1,4}}) \] = ({NUMBER})"
)


def _coco(text: str) -> Sentence | None:
    if not text.startswith("Average ") or not (found := _COCO.fullmatch(text)):
        return None
    kind, overlap, area, most, number = found.groups()
    name = kind if (overlap, area, most) == ("0.50:0.95", "all", "100") else f"{kind}@{overlap}/{area}/{most}"
    return Sentence("COCO's summary", {name: float(number)}) if float(number) >= 0 else None


def read(text: str) -> Sentence | None:
    return _coco(text) or _fold(text) or _losses(text) or _about(text)

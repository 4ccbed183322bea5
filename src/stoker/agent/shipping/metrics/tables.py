"""Metrics in tables that scripts print, and in lines that one library or tutorial prints in exactly one way. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from stoker.agent.shipping.metrics.namedvalues import NUMBER, is_metric, is_timing, split_of

MOST_ROWS = 200  # of a box
_BAR = re.compile(r":?\s{0,8}\d{1,3}%\|.{0,400}$")  # tqdm's, behind a row of YOLO's
_RULE = re.compile(r"[-=─━═+|:┼┃│└┘┴├┤┬┌┐┡┩╇┏┓┳╰╯╭╮ ]{3,2000}")
_NAME = re.compile(r"[A-Za-z#][\w@/.+()%^# -]{0,60}", re.ASCII)
_CELL = re.compile(rf"({NUMBER})%?")
_OTHER = re.compile(r"\d{1,9}/\d{1,9}|[\d:.]{1,15}|[\d.]{1,12}[a-zA-Z]{1,4}|-|None|\+|✓|cp")
_COUNTS = ("step", "total_timesteps", "timesteps", "total_steps", "totalenvinteracts", "iteration", "iter", "epoch",
           "epochs", "e", "round", "iterations")  # fmt: skip
_AVERAGES = ("macro avg", "weighted avg", "micro avg", "samples avg")


class TableRow(NamedTuple):
    shape: str
    step: float | None
    epoch: float | None
    values: dict[str, float]


class Tables:
    """Reads lines in order. `open` says that rows may follow: they hold no word that tells them from other lines."""

    def __init__(self) -> None:
        self.open = False
        self.heads = 0  # that were read
        self._head: list[str] = []
        self._box: dict[str, float] = {}
        self._section = ""
        self._sections = 0
        self._last = -1.0  # what the first column counted last

    def read(self, text: str) -> TableRow | None:
        """`text` is without blanks at its ends."""
        text = text.translate(_LINES)
        if text[0] == "|" and text[-1] == "|" and text.count("|") == 3 and self._boxed(text):
            return None
        if _RULE.fullmatch(text):
            return self._closed()
        text = _BAR.sub("", text) if "%|" in text else text
        if self._head and (row := self._row(text)):
            return row
        if names := _head(text):
            self._head, self.open, self._last = names, True, -1.0
            self.heads += 1
        return None

    def _boxed(self, text: str) -> bool:
        name, value = (cell.strip() for cell in text.strip("|").split("|"))
        if name.endswith("/") and not value:
            self._section, self.open = name, True
            self._sections += 1
            return True
        number = _CELL.fullmatch(value)
        if not number or not _NAME.fullmatch(name) or len(self._box) >= MOST_ROWS:
            return False
        self._box[f"{self._section}{name}"] = float(number[1])
        self.open = True
        return True

    def _closed(self) -> TableRow | None:
        """A rule ends a box, or stands between a head and its rows."""
        box, sections = self._box, self._sections
        self._box, self._section, self._sections = {}, "", 0
        counted = [name for name in box if name.rpartition("/")[2].lower() in _COUNTS]
        values = {
            name: one for name, one in box.items() if name not in counted and not is_timing(name.rpartition("/")[2])
        }
        if not values or not ((sections and counted) or (counted and len(box) > 2) or any(map(is_metric, values))):
            return None
        counted.sort(key=lambda name: _COUNTS.index(name.rpartition("/")[2].lower()))
        return TableRow("tables of names and numbers", box[counted[0]] if counted else None, None, values)

    def _row(self, text: str) -> TableRow | None:
        cells = _cells(text)
        head = self._head
        if len(cells) != len(head) or not _is_number(cells[0]):
            return self._labelled(text)
        if not all(_is_number(cell) for cell in cells):
            return None
        values, step, epoch = {}, None, None
        for name, cell in zip(head, cells, strict=True):
            low = name.lower()
            number = _CELL.fullmatch(cell) or re.match(r"(\d{1,9})/", cell)
            if number and low in _COUNTS:
                step, epoch = (step, float(number[1])) if low in ("epoch", "epochs", "e") else (float(number[1]), epoch)
            elif number and not is_timing(name):
                values[name] = float(number[1])
        count = step if step is not None else epoch
        fractions = any("." in cell for cell in cells)
        if not values or (count is None and not fractions) or (count is not None and count < self._last):
            self._head = []
            return None
        self._last = count if count is not None else self._last
        return TableRow("tables", step, epoch, values)

    def _labelled(self, text: str) -> TableRow | None:
        """A row that begins with what it is of: a split, `all` of YOLO's classes, scikit-learn's averages."""
        head, cells = self._head, _cells(text)
        if len(cells) == len(head) > 1 and (split := split_of(cells[0])) and all(map(_CELL.fullmatch, cells[1:])):
            parts = zip(head[1:], cells[1:], strict=True)
            return TableRow("tables", None, None, {f"{split}_{name}": float(one.rstrip("%")) for name, one in parts})
        if head[0].lower() == "class" and text.startswith("all "):
            cells = ["0", *text.split()[1:]]
            names = head[3:] if len(cells) == len(head) else []
            numbers = [_CELL.fullmatch(cell) for cell in cells[3:]] if names else []
            values = {name: float(one[1]) for name, one in zip(names, numbers, strict=True) if one}
            return TableRow("tables", None, None, values) if values and len(values) == len(names) else None
        if [name.lower() for name in head] != ["precision", "recall", "f1-score", "support"]:
            return None
        label = next((one for one in _AVERAGES if text.startswith(one)), "")
        cells = text[len(label) :].split() if label else text.split()
        if label and len(cells) == 4 and all(map(_CELL.fullmatch, cells)):
            short = label.replace(" ", "_")
            return TableRow(
                "tables",
                None,
                None,
                {f"{short}/{name}": float(one) for name, one in zip(head[:3], cells[:3], strict=True)},
            )
        if len(cells) == 3 and cells[0] == "accuracy" and all(map(_CELL.fullmatch, cells[1:])):
            return TableRow("tables", None, None, {"accuracy": float(cells[1])})
        return None


_LINES = str.maketrans("│┃║╎", "||||")


def _cells(text: str) -> list[str]:
    if "|" in text:
        return [cell.strip() for cell in text.strip("| ").split("|")]
    return text.split()


def _head(text: str) -> list[str]:
    """The names of its columns, if the line is a head: it names a metric beside others, or beside what counts."""
    if not text or ":" in text or "=" in text or not (text[0].isalpha() or text[0] in "#|"):
        return []
    cells = _cells(text) if "|" in text else re.split(r"\s{2,40}|\t", text)
    if not 2 <= len(cells) <= 40 or not all(_NAME.fullmatch(cell) for cell in cells):
        return []
    names = [re.sub(r"[^\w@/.#+-]{1,10}", "_", cell).strip("_").replace("#", "step") or cell for cell in cells]
    names = [_split_name(name) for name in names]
    metrics = sum(is_metric(name) for name in names)
    counts = any(name.lower() in _COUNTS for name in names)
    return names if metrics and (counts or metrics > 1 or names[0].lower() == "class") else []


def _split_name(name: str) -> str:
    """As in other lines: `Train Loss` is `train_loss`. What needs no change keeps its spelling."""
    first, _, rest = name.partition("_")
    return f"{split_of(first)}_{rest.lower()}" if rest and first[:1].isupper() and split_of(first) else name


def _is_number(cell: str) -> bool:
    return bool(_CELL.fullmatch(cell) or _OTHER.fullmatch(cell))


class Sentence(NamedTuple):
    shape: str
    values: Mapping[str, float]
    step: float | None = None  # None: the line names none


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


_NUMBERED = re.compile(
    rf"(?P<split>train|training|val|validation|test) loss (?P<step>\d{{1,12}}):?\s{{1,8}}(?P<number>{NUMBER})(?=\s|$)",
    re.IGNORECASE,
)


def _numbered(text: str) -> Sentence | None:
    """`Train loss 12 0.4321 Grad Norm 1.2`, as Tacotron 2 prints it: the first number is the step."""
    found = _NUMBERED.match(text)
    if not found or "." not in found["number"]:
        return None
    return Sentence("sentences", {f"{split_of(found['split'])}_loss": float(found["number"])}, float(found["step"]))


_AFTER = re.compile(
    r"(?P<split>\w{1,20} )?(?P<name>loss|cost|error|accuracy|reward|score) (?:after|at|in|for|of) "
    rf"(?:epoch|step|iteration|iter|episode) #?(?P<step>\d{{1,12}})(?: ?[:=]| is) {{0,4}}(?P<number>{NUMBER})%?",
    re.IGNORECASE,
)


def _after(text: str) -> Sentence | None:
    """`Training loss after epoch 3: 0.345`"""
    if not (found := _AFTER.fullmatch(text)):
        return None
    split = split_of((found["split"] or "").strip())
    name = f"{split}_{found['name'].lower()}" if split else found["name"].lower()
    return Sentence("sentences", {name: float(found["number"])}, float(found["step"]))


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
    return _coco(text) or _fold(text) or _losses(text) or _numbered(text) or _after(text) or _about(text)

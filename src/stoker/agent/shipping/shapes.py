"""Metrics in what scripts print without thinking of anybody who reads it: which shapes of lines are known. Pure.

Better no metric than a wrong one: a line has to be of a framework's own form, or name a metric by a word of the field
and consist of hardly anything but names, numbers and counters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stoker.agent.shipping import namedvalues
from stoker.agent.shipping.namedvalues import NUMBER, Counted, Counters, Spot, is_metric

LONGEST_TEXT = 2000  # characters; longer lines are not for people, and nobody prints metrics in them
ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_RULES = ("==", "##", "~~", "--")
_RULED = re.compile(r"^[=#~-]{2,40}>?\s{0,8}|\s[=#~-]{2,40}$")

_ALIGNED = re.compile(r"\s{2,40}: ")  # `loss           : 0.3`, one name a line
_LOGGED = re.compile(r"^.{0,80}?\bINFO\b[\]:\s|-]{1,20}")


class Found(NamedTuple):
    """What one line holds. `shape` says by which rule it was read, in words for people."""

    shape: str
    step: float | None
    values: Mapping[str, float]


class Shapes:
    """Reads the lines of one rank, in order: an epoch may stand on a line of its own."""

    def __init__(self) -> None:
        self._epoch: float | None = None
        self._forms: dict[str, Form] = {}
        self._measured = False  # the epoch under way has had its bar: the next one is of an evaluation

    def read(self, line: str) -> Found | None:
        text = ESCAPES.sub("", line).strip()
        text = _RULED.sub("", text) if text.startswith(_RULES) else text
        text = _ALIGNED.sub(": ", text) if "  :" in text else text
        if not text or len(text) > LONGEST_TEXT:
            return None
        if header := _HEADER.fullmatch(_LOGGED.sub("", text, 1) if "epoch: " in text[-20:] else text):
            self._epoch, self._measured = float(header[1]), False
            return None
        if text[0] == "{" and text[-1] == "}":
            return _dictionary(text)
        if text.startswith("DLL"):
            return _dllogger(text)
        for reader in (_boosted, _trial, self._bar):
            if found := reader(text):
                return found
        return self._named(text)

    def _bar(self, text: str) -> Found | None:
        """Keras's progress bar, once it is full."""
        bar = _KERAS.match(text)
        if not bar:
            return None
        values = {match[1]: float(match[2]) for match in _KERAS_PAIR.finditer(text, bar.end())}
        if not values or bar[1] != bar[2]:
            return None
        if self._measured or self._epoch is None:
            return Found("Keras's progress bars", self._epoch, {f"evaluate/{key}": one for key, one in values.items()})
        self._measured = True
        return Found("Keras's progress bars", self._epoch, values)

    def _named(self, text: str) -> Found | None:
        form = text.translate(_DIGITS)
        known = self._forms.get(form)
        if known is None or any(text[slice(*one.label)] != label for one, label in known.labels):
            known = _form(text)
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[form] = known
        if not known.spots:
            return None
        counters = known.counted.read(text)
        self._epoch = self._epoch if counters.epoch is None else counters.epoch
        return Found(known.shape, *_stepped(counters, {one.name: one.value(text) for one in known.spots}, self._epoch))


def _stepped(
    counters: Counters, values: dict[str, float], epoch: float | None
) -> tuple[float | None, dict[str, float]]:
    """The step, and the values beside it: the epoch, where a step goes before it."""
    if counters.share is not None and counters.epoch is not None:
        return round(counters.epoch + counters.share, 6), values
    if counters.step is None:
        return epoch, values
    return counters.step, values if counters.epoch is None else {"epoch": counters.epoch, **values}


class Form(NamedTuple):
    """Where the metrics stand in lines that differ in digits only: a script prints millions of few forms."""

    shape: str
    counted: Counted
    spots: tuple[Spot, ...]
    labels: tuple[tuple[Spot, str], ...]  # names may have digits in them


_DIGITS = str.maketrans("123456789", "000000000")
MOST_FORMS = 1000


def _form(text: str) -> Form:
    counted = namedvalues.counted(text)
    spots = namedvalues.spots(text, counts=counted != Counted())
    shape = "tqdm's progress bars" if namedvalues.TQDM.search(text) else "names and numbers"
    return Form(shape, counted, spots, tuple((one, text[slice(*one.label)]) for one in spots))


_HEADER = re.compile(r"(?:\[)?[Ee]poch:? ?\[?(\d{1,9})(?: ?/ ?\d{1,9})?\]?[:.]?", re.ASCII)
_KERAS = re.compile(r"(\d{1,9})/(\d{1,9}) (?:\[[=>.]{1,60}\]|[━╸ ]{1,60}|-)(?= )")
_KERAS_PAIR = re.compile(rf" - ([A-Za-z_][\w@/.+-]{{0,100}}): ({NUMBER})(?= |$)", re.ASCII)


# --- Python dictionaries, as the Hugging Face Trainer prints them


_ITEM = re.compile(
    rf"""(?<=[{{ ,])(['"])([^'"{{}}]{{1,100}})\1: ?(['"]|(?:np\.|numpy\.)?float\d\d\(|tensor\()?({NUMBER})"""
    r"""(?:\3|, device='[\w:]{1,20}'\)|\))?(?=[,}])"""
)
_COUNTS = ("step", "global_step", "iteration", "epoch")


def _dictionary(text: str) -> Found | None:
    items = {match[2]: float(match[4]) for match in _ITEM.finditer(text)}
    step = next((items.pop(name) for name in _COUNTS if name in items), None)
    fractions = any("." in match[4] for match in _ITEM.finditer(text) if match[2] in items)
    if not any(map(is_metric, items)) and not (step is not None and items and fractions):
        return None
    return Found("Python dictionaries", step, items)


# --- NVIDIA's DLLogger


_DLL = re.compile(r"DLL \d{4}-\d\d-\d\d [\d:.]{8,15} - ")
_DLL_STEP = re.compile(r"\((\d{1,9})?(?:, ?(\d{1,12})?){0,2},?\) ")
_DLL_PAIR = re.compile(rf"([A-Za-z][\w@/.-]{{0,100}}) : ({NUMBER})(?=\s|$)", re.ASCII)


def _dllogger(text: str) -> Found | None:
    if text.startswith("DLLL {"):
        return _dll_object(text[5:])
    head = _DLL.match(text)
    if not head:
        return None
    rest = text[head.end() :]
    counted = namedvalues.counters(rest)
    if tuple_ := _DLL_STEP.match(rest):
        epoch, step = (float(one) if one else None for one in tuple_.groups())
        counted = Counters(epoch, step, None)
    values = {name: float(number) for name, number in _DLL_PAIR.findall(rest) if not namedvalues.is_timing(name)}
    if not any(map(is_metric, values)):
        return None
    return Found("DLLogger's lines", *_stepped(counted, values, counted.epoch))


def _dll_object(text: str) -> Found | None:
    try:
        told = json.loads(text)
        data, step = told["data"], told.get("step")
        values = {str(key): float(one) for key, one in data.items() if type(one) in (int, float)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    counts = [one for one in step if type(one) is int] if isinstance(step, list) else [step]
    if told.get("type") != "LOG" or not any(map(is_metric, values)):
        return None
    whole = [float(one) for one in counts if type(one) is int and abs(one) < 1 << 53]
    counted = Counters(whole[0] if len(whole) > 1 else None, whole[-1] if whole else None, None)
    return Found("DLLogger's lines", *_stepped(counted, values, None))


# --- Boosted trees


_ROUND = re.compile(r"\[(\d{1,9})\]\s")
_XGBOOST = re.compile(rf"\s([A-Za-z_][\w@.-]{{0,100}}):({NUMBER})(?=\s|$|\+\d)", re.ASCII)
_LIGHTGBM = re.compile(rf"\s([A-Za-z_][\w@.-]{{0,100}})'s ([A-Za-z_][\w@.-]{{0,100}}): ({NUMBER})(?=\s|$)", re.ASCII)
_CATBOOST = re.compile(r"(\d{1,9}):\t(?=learn: |test: )")
_CATBOOST_PAIR = re.compile(rf"\b(learn|test\d?|best): ({NUMBER})(?=\s|$)")


def _boosted(text: str) -> Found | None:
    if catboost := _CATBOOST.match(text):
        values = {match[1]: float(match[2]) for match in _CATBOOST_PAIR.finditer(text)}
        return Found("CatBoost's rounds", float(catboost[1]), values) if values else None
    start = _ROUND.match(text)
    if not start:
        return None
    rest = text[start.end() - 1 :]
    if values := {match[1]: float(match[2]) for match in _XGBOOST.finditer(rest) if "-" in match[1]}:
        return Found("XGBoost's rounds", float(start[1]), values)
    values = {f"{match[1]}/{match[2]}": float(match[3]) for match in _LIGHTGBM.finditer(rest)}
    return Found("LightGBM's rounds", float(start[1]), values) if values else None


# --- Optuna


_TRIAL = re.compile(rf"\bTrial (\d{{1,9}}) finished with value: ({NUMBER})(?= and parameters)")


def _trial(text: str) -> Found | None:
    found = _TRIAL.search(text)
    return Found("Optuna's trials", float(found[1]), {"value": float(found[2])}) if found else None


# --- Which lines are worth a look


# Plain searches, because each costs a tenth of what an expression does.
_COMMON_HINTS = (b"\n{", b"loss", b"acc", b"epoch", b"]\t")
_HINTS = (
    *_COMMON_HINTS,
    *(
        b":\tlearn",
        b"finished with value",
        b"mse",
        b"mae",
        b"auc",
        b"f1",
        b"score",
        b"ppl",
        b"perplex",
        b"reward",
        b"iou",
    ),
    *(b"error", b"bleu", b"psnr", b"recall", b"/step - "),
)


def candidates(data: bytes, *, flood: bool = False) -> Iterator[bytes]:
    """The lines that may hold a metric, in order. `data` begins and ends with a line's break. In a `flood`, of more
    output than anybody reads, only the commonest words are looked for."""
    low = data.lower()
    found: dict[int, int] = {}
    for hint in _COMMON_HINTS if flood else _HINTS:
        at = low.find(hint)
        while at >= 0:
            end = low.find(b"\n", at + 1)
            if end < 0:
                break
            found[low.rfind(b"\n", 0, at + 1) + 1] = end
            at = low.find(hint, end)
    for start in sorted(found):
        yield data[start : found[start]]

"""Metrics in ordinary script output: the known formats of lines. Pure.

Better no metric than a wrong one: a line must have a framework's own format, or name a metric by a common word and
consist of hardly anything but names, numbers and counters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from stoker.agent.shipping.metrics import namedvalues, tables
from stoker.agent.shipping.metrics.namedvalues import NUMBER, CounterSpans, LineCounters, MetricSpan, is_metric
from stoker.agent.shipping.metrics.tables import Tables

LONGEST_TEXT = 2000  # characters; longer lines contain no metrics
ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_RULES = ("==", "##", "~~", "--")
_RULED = re.compile(r"^[=#~-]{2,40}>?\s{0,8}|\s[=#~-]{2,40}$")

_ALIGNED = re.compile(r"\s{2,40}: ")  # `loss           : 0.3`, one name a line
# What loggers write before a message: `INFO:name:`, `[time name] (file line): INFO `, absl's `I1118 16:22:33 ...] `.
_LOGGED = re.compile(
    r".{0,80}?\b(?:INFO|DEBUG)\b(?::[\w.]{1,60}:\s?|[\]:\s|)-]{1,20}(?:[\w.]{1,60}:\w{1,60}:\d{1,6} - )?)"
    r"|[IWEF]\d{4} [\d:.]{8,20}\s{1,8}\d{1,12} [\w.]{1,80}:\d{1,6}\] "
)


class LineMetrics(NamedTuple):
    """The metrics of one line. `shape` names the format, for messages."""

    shape: str
    step: float | None
    values: Mapping[str, float]


class Shapes:
    """Reads the lines of one rank, in order: an epoch may have its own line."""

    def __init__(self) -> None:
        self._epoch: float | None = None
        self._forms: dict[str, Form] = {}
        self._tables = Tables()
        self._header = False  # the line contained only the epoch
        self._dull: set[str] = set()  # forms of lines without metrics, which most lines have
        self._section = ""  # the split named by the previous line, if it contained nothing else
        self._measured = False  # the current epoch has had its bar: the next one is an evaluation

    def read(self, line: str) -> LineMetrics | None:
        text = ESCAPES.sub("", line).strip()
        if not text or len(text) > LONGEST_TEXT:
            return None
        form = text.translate(_DIGITS)
        if form in self._dull:
            self._section = ""
            return None
        self._header, heads = False, self._tables.heads
        found = self._read(text)
        if len(self._dull) >= MOST_FORMS or self._tables.heads != heads:
            self._dull.clear()
        elif not (found or self._header or self._section or text[0] in _OF_TABLES):
            self._dull.add(form)
        return found

    def _read(self, text: str) -> LineMetrics | None:
        if row := self._tables.read(text):
            self._epoch = self._epoch if row.epoch is None else row.epoch
            return LineMetrics(row.shape, *_stepped(LineCounters(row.epoch, row.step, None), row.values, self._epoch))
        text = _plain(_message(text))
        text = _RULED.sub("", text) if text.startswith(_RULES) else text
        text = _ALIGNED.sub(": ", text) if "  :" in text else text
        if not text:
            return None
        if header := _HEADER.fullmatch(text):
            self._epoch, self._measured = float(header[1]), False
            self._header = True
            return None
        if text[0] == "{" and text[-1] == "}":
            return _dictionary(text)
        if text.startswith("DLL"):
            return _dllogger(text)
        for reader in (_boosted, _trial, self._bar, self._sentence):
            if found := reader(text):
                return found
        section, self._section = self._section, _section(text)
        if drawn := _DRAWN.match(text):  # each epoch has one for training, and then one for the test
            section, self._measured = "test" if self._measured else "", True
            text = text[drawn.end() :]
        return self._named(text, section)

    @property
    def wants_all(self) -> bool:
        """Rows of a table may follow, which no word tells from other lines."""
        return self._tables.open

    def _sentence(self, text: str) -> LineMetrics | None:
        found = tables.read(text)
        if found is None:
            return None
        return LineMetrics(found.shape, self._epoch if found.step is None else found.step, found.values)

    def _bar(self, text: str) -> LineMetrics | None:
        """Keras's progress bar, once it is full."""
        bar = _KERAS.match(text)
        if not bar:
            return None
        values = {match[1]: float(match[2]) for match in _KERAS_PAIR.finditer(text, bar.end())}
        if not values or bar[1] != bar[2]:
            return None
        if self._measured or self._epoch is None:
            return LineMetrics(
                "Keras's progress bars", self._epoch, {f"evaluate/{key}": one for key, one in values.items()}
            )
        self._measured = True
        return LineMetrics("Keras's progress bars", self._epoch, values)

    def _named(self, text: str, section: str) -> LineMetrics | None:
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
        values = {one.name: one.value(text) for one in known.spots}
        if section and not any(map(namedvalues.split_of, values)):
            values = {f"{section}_{name}": one for name, one in values.items()}
        return LineMetrics(known.shape, *_stepped(counters, values, self._epoch))


def _stepped(
    counters: LineCounters, values: dict[str, float], epoch: float | None
) -> tuple[float | None, dict[str, float]]:
    """The step, and the other values: including the epoch, if there is also a step."""
    under_way = epoch if counters.epoch is None else counters.epoch
    if counters.share is not None and under_way is not None:
        return round(under_way + counters.share, 6), values
    if counters.step is None:
        return epoch, values
    return counters.step, values if counters.epoch is None else {"epoch": counters.epoch, **values}


class Form(NamedTuple):
    """Where the metrics are in lines that differ only in digits: a script prints millions of lines in few forms."""

    shape: str
    counted: CounterSpans
    spots: tuple[MetricSpan, ...]
    labels: tuple[tuple[MetricSpan, str], ...]  # names may contain digits


_OF_TABLES = "|│┃-─"
_DIGITS = str.maketrans("123456789", "000000000")
MOST_FORMS = 1000


def _form(text: str) -> Form:
    counted = namedvalues.counted(text)
    spots = namedvalues.spots(text, counts=counted != CounterSpans())
    shape = "tqdm's progress bars" if namedvalues.TQDM.search(text) else "names and numbers"
    return Form(shape, counted, spots, tuple((one, text[slice(*one.label)]) for one in spots))


_WRAPPED = re.compile(
    rf"(?:(?:np|numpy|jnp|tf)\.)?(?:[tT]ensor|float\d\d|[aA]rray)\(\[?({NUMBER})\]?"
    r"(?:, (?:device|grad_fn|dtype|shape|requires_grad|weak_type)=(?:'[\w:]{1,20}'|<\w{1,40}>|\(\)|[\w.]{1,20})){0,4}\)"
)
_LISTED = re.compile(r"(?<=[:= ])\[\s?(-?\d{1,30}\.\d{0,30})\s?\](?=[\s,]|$)")
_SPELLED = re.compile(r"\b[rR](?:\^2|²)|\b[tT]op[- ](?=\d{1,2}\b)")


def _plain(text: str) -> str:
    """With numbers that are printed as tensors or lists of one, and names of several spellings, in their usual form."""
    if "(" in text:
        text = _WRAPPED.sub(r"\1", text)
    if "[" in text:
        text = _LISTED.sub(r"\1", text)
    if "2" in text or "²" in text or "op" in text:
        text = _SPELLED.sub(lambda found: "top" if found[0][0] in "tT" else "r2", text)
    return text


def _message(text: str) -> str:
    """What is logged, without what the logger writes before it."""
    if "INFO" in text or "DEBUG" in text or text[1:5].isdigit():
        text = text[found.end() :].lstrip() if (found := _LOGGED.match(text)) else text
    return text


_SECTION = re.compile(r"([A-Za-z]{3,12})(?: (?:error|set|results?|metrics|scores?|performance))?:?", re.ASCII | re.I)


def _section(text: str) -> str:
    """The split that a line on its own announces: `Test Error:`."""
    found = _SECTION.fullmatch(text) if len(text) < 30 else None
    split = namedvalues.split_of(found[1]) if found else ""
    return "" if split == "train" else split


_HEADER = re.compile(r"(?:\[)?(?:[Ee]poch|EPOCH):? ?\[?(\d{1,9})(?: ?/ ?\d{1,9})?\]?[:.]?", re.ASCII)
_KERAS = re.compile(r"(\d{1,9})/(\d{1,9}) (?:\[[=>.]{1,60}\]|[━╸ ]{1,60}|-)(?= )")
# Of pytorch-cifar: what follows are times, perhaps with the count of batches in the middle.
_DRAWN = re.compile(r"\[={0,100}>\.{0,100}[^|]{0,90}\| (?:[^|]{0,8}Tot: [^|]{0,40}\| )?(?=[A-Z])")
_KERAS_PAIR = re.compile(rf" - ([A-Za-z_][\w@/.+-]{{0,100}}): ({NUMBER})(?= |$)", re.ASCII)


# --- Python dictionaries, as the Hugging Face Trainer prints them


_ITEM = re.compile(
    rf"""(?<=[{{ ,])(['"])([^'"{{}}]{{1,100}})\1: ?(['"]|(?:np\.|numpy\.)?float\d\d\(|tensor\()?({NUMBER})"""
    r"""(?:\3|, device='[\w:]{1,20}'\)|\))?(?=[,}])"""
)
_COUNTS = ("step", "global_step", "iteration", "epoch")


def _dictionary(text: str) -> LineMetrics | None:
    items = {match[2]: float(match[4]) for match in _ITEM.finditer(text)}
    step = next((items.pop(name) for name in _COUNTS if name in items), None)
    fractions = any("." in match[4] for match in _ITEM.finditer(text) if match[2] in items)
    if not any(map(is_metric, items)) and not (step is not None and items and fractions):
        return None
    return LineMetrics("Python dictionaries", step, items)


# --- NVIDIA's DLLogger


_DLL = re.compile(r"DLL \d{4}-\d\d-\d\d [\d:.]{8,15} - ")
_DLL_STEP = re.compile(r"\((\d{1,9})?(?:, ?(\d{1,12})?){0,2},?\) ")
_DLL_PAIR = re.compile(rf"([A-Za-z][\w@/.-]{{0,100}}) : ({NUMBER})(?=\s|$)", re.ASCII)


def _dllogger(text: str) -> LineMetrics | None:
    if text.startswith("DLLL {"):
        return _dll_object(text[5:])
    head = _DLL.match(text)
    if not head:
        return None
    rest = text[head.end() :]
    counted = namedvalues.counters(rest)
    if tuple_ := _DLL_STEP.match(rest):
        epoch, step = (float(one) if one else None for one in tuple_.groups())
        counted = LineCounters(epoch, step, None)
    values = {name: float(number) for name, number in _DLL_PAIR.findall(rest) if not namedvalues.is_timing(name)}
    if not any(map(is_metric, values)):
        return None
    return LineMetrics("DLLogger's lines", *_stepped(counted, values, counted.epoch))


def _dll_object(text: str) -> LineMetrics | None:
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
    counted = LineCounters(whole[0] if len(whole) > 1 else None, whole[-1] if whole else None, None)
    return LineMetrics("DLLogger's lines", *_stepped(counted, values, None))


# --- Boosted trees


_ROUND = re.compile(r"\[(\d{1,9})\]\s")
_XGBOOST = re.compile(rf"\s([A-Za-z_][\w@.-]{{0,100}}):({NUMBER})(?=\s|$|\+\d)", re.ASCII)
_LIGHTGBM = re.compile(rf"\s([A-Za-z_][\w@.-]{{0,100}})'s ([A-Za-z_][\w@.-]{{0,100}}): ({NUMBER})(?=\s|$)", re.ASCII)
_CATBOOST = re.compile(r"(\d{1,9}):\t(?=learn: |test: )")
_CATBOOST_PAIR = re.compile(rf"\b(learn|test\d?|best): ({NUMBER})(?=\s|$)")


def _boosted(text: str) -> LineMetrics | None:
    if catboost := _CATBOOST.match(text):
        values = {match[1]: float(match[2]) for match in _CATBOOST_PAIR.finditer(text)}
        return LineMetrics("CatBoost's rounds", float(catboost[1]), values) if values else None
    start = _ROUND.match(text)
    if not start:
        return None
    rest = text[start.end() - 1 :]
    if values := {match[1]: float(match[2]) for match in _XGBOOST.finditer(rest) if "-" in match[1]}:
        return LineMetrics("XGBoost's rounds", float(start[1]), values)
    values = {f"{match[1]}/{match[2]}": float(match[3]) for match in _LIGHTGBM.finditer(rest)}
    return LineMetrics("LightGBM's rounds", float(start[1]), values) if values else None


# --- Optuna


_TRIAL = re.compile(rf"\bTrial (\d{{1,9}}) finished with value: ({NUMBER})(?= and parameters)")


def _trial(text: str) -> LineMetrics | None:
    found = _TRIAL.search(text)
    return LineMetrics("Optuna's trials", float(found[1]), {"value": float(found[2])}) if found else None


# --- Which lines to parse


# Plain searches, because each costs a tenth of a regular expression.
_COMMON_HINTS = (b"\n{", b"loss", b"acc", b"epoch", b"]\t")
_HINTS = (
    *_COMMON_HINTS,
    *(b":\tlearn", b":\ttest", b"finished with value", b"mse", b"mae", b"auc", b"f1", b"score", b"ppl", b"perplex"),
    *(b"reward", b"iou", b"error", b"bleu", b"psnr", b"recall", b"/step - ", b"\n| ", b"\n\xe2\x94\x82 ", b"map"),
    *(b"return", b"r2", b"r^2", b"top1", b"top5", b"top-", b"inertia", b"nll", b"elbo", b"dice", b"average precision"),
    b"cost",
)


def candidates(data: bytes, *, flood: bool = False, wants_all: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """The lines that may contain a metric, in order. `data` starts and ends with a line break. In a `flood` of output,
    only the most common words are searched. As soon as `wants_all` returns True, every line is a candidate."""
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
    end = 0
    for start in sorted(found):
        if not flood and wants_all():
            break
        end = found[start]
        yield data[start:end]
    if not flood and wants_all():
        yield from data[end + 1 :].split(b"\n")

"""Names with numbers in a line of text: `Epoch 3/8 loss: 0.03 val_acc: 0.75`. Pure.

Every regular expression here takes time linear in the length of the line: all repetitions are bounded.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

NUMBER = r"(?:[-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,3})?|[-+]?(?:nan|NaN|inf|Infinity))"
TQDM = re.compile(r"\d%\|.{0,400}\| ?\d{1,15}/\d{1,15} \[")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SURE = _words(
    "loss losses acc accuracy rmse mse mae mape rmsle auc auroc aucpr f1 fscore ppl perplexity bleu rouge iou miou psnr"
    " ssim lpips nll elbo logloss mlogloss merror ndcg mrr reward rewards dice bpc wer cer bce kld hits jaccard prec"
    " mcc likelihood recall r2 top1 top5 inertia pearson spearman"
)
# Metrics in one context and something else in another: they count only next to an epoch, a step or a certain metric.
_LIKELY = _words("err error score precision map ap ar hr kl ce fid entropy corr return returns top")
# Words that make a name with a metric's word in it a setting, a timing or a size.
_NOT = _words(
    "weight weights scale coef coeff steps size type fn func function name threshold thresh margin smoothing ratio"
    " factor patience delta alpha beta gamma freq every num number interval dir path file target baseline lambda eps"
    " epsilon time times data eta sec secs seconds ms elapsed remaining mem memory speed throughput wall wps ups wpb"
    " bsz samples tokens images img it fps mfu gpu cpu date v version batch duration runtime took latency seed rank pid"
    " port world device clip gb free node min max total mins hours minutes grads params parameters epochs layers"
)
_BETWEEN = _words("in after for at within to from by with than")  # `loss 0.41 in 17 s`: the next number's words
_COUNTERS = _words("epoch step iter iteration round episode update updates")
_SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "dev": "dev",
    "test": "test", "testing": "test", "eval": "eval", "evaluation": "eval",
}  # fmt: skip
_PLAIN = _words("avg average mean set results result metrics")  # meaningless next to a split
# Before a metric they are part of its name.
_KEPT = _words(
    "best final total running epoch mean macro micro weighted max min initial d g q v td discriminator generator policy"
    " value actor critic reconstruction recon kl content style classification regression contrastive adversarial cycle"
    " perceptual aux auxiliary student teacher word token char sentence roc pr cv exact l1 l2 box cls obj mask"
)
_WISHED = _words(
    "target baseline required expected desired goal threshold previous minimum maximum"
)  # none was measured
_USUAL = _words(
    "is was of lr gnorm grad norm learning rate momentum global info debug and the root main inner on subset phase end"
    " events utils"
)
_KNOWN = _SURE | _LIKELY | _NOT | _COUNTERS | _PLAIN | _KEPT | _USUAL | frozenset(_SPLITS)
_MOST_STRANGE = 1  # other words allowed in a line without an epoch or step
_MOST_STRANGE_COUNTED = 4


Span = tuple[int, int]


class LineCounters(NamedTuple):
    """The counters of a line. `share` is the part of its epoch that is done."""

    epoch: float | None
    step: float | None
    share: float | None


class CounterSpans(NamedTuple):
    """Where in a line its counters are."""

    epoch: Span | None = None
    step: Span | None = None
    part: Span | None = None  # of an epoch, and of how many
    parts: Span | None = None

    def read(self, text: str) -> LineCounters:
        epoch, step, part, parts = (float(text[slice(*span)]) if span else None for span in self)
        share = part / parts if part is not None and parts and part <= parts else None
        return LineCounters(epoch, step, share)


class MetricSpan(NamedTuple):
    """Where in a line a metric is. `name` is its full name, `label` where that was read."""

    name: str
    label: Span
    number: Span
    of: Span | None  # it is a share of this

    def value(self, text: str) -> float:
        value = float(text[slice(*self.number)])
        return value / max(float(text[slice(*self.of)]), 1.0) if self.of else value


_EPOCH = re.compile(
    r"\b(?:epoch|ep)(?: ?\((?:train|val|test)\))?\s{0,8}[:=#]?\s{0,8}[\[(]?\s{0,8}(\d{1,9}(?:\.\d{1,9})?)\b",
    re.IGNORECASE,
)
_INNER = re.compile(
    r"(?:[\[(]|\b(?:step|iter|iteration|batch)\s{0,4}[:=]?\s{0,4}[\[(]?|:\s)\s{0,8}(\d{1,12})\s{0,4}(?:/|of)\s{0,4}(\d{1,12})\b",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"(?:\b|_)(?:step|itr|iter|iteration|it|num_updates|update|round|episode|generation|timesteps?)"
    r"(?: ?\((?:train|val|test)\))?\s{0,4}[:=#]?\s{0,8}[\[(]?\s{0,8}(\d{1,12})(?![\d.]*\d?[a-zA-Z%])\b",
    re.IGNORECASE,
)
_LEADING = re.compile(
    r"(?:.{0,100}\.py:\d{1,6}\] )?(?:train |eval )?\[(\d{1,12})(?:/\d{1,12})?\] |(\d{1,9})(?: ?[:|)]|(?= loss)) "
)
_TRAILING = re.compile(r"\[\s{0,8}(\d{1,12})\s{0,4}/\s{0,4}(\d{1,12})\]$")  # loss: 2.303494  [   64/60000]
# [0/25][40/1583], likewise
_DOUBLE = re.compile(r"(?:[Tt]rain:? ?)?\[(\d{1,9})/\d{1,9}\]\s?\[\s{0,8}(\d{1,9})/(\d{1,9})\]")
_BATCH = re.compile(r"\[(\d{1,9}),\s{1,8}\d{1,12}\] ")  # [2, 12000] loss: 1.284, an epoch and a batch


def counted(text: str) -> CounterSpans:
    """The epoch and the step in a line, if any."""
    epoch = _EPOCH.search(text)
    inner = _INNER.search(text, epoch.end()) if epoch and "%|" not in text else None
    if epoch and inner:
        return CounterSpans(epoch.span(1), None, inner.span(1), inner.span(2))
    if double := _DOUBLE.match(text):
        return CounterSpans(double.span(1), None, double.span(2), double.span(3))
    if batch := _BATCH.match(text):
        return CounterSpans(batch.span(1))
    step = _STEP.search(text) or _LEADING.match(text)
    if not epoch and not step and (part := _TRAILING.search(text)):
        return CounterSpans(None, None, part.span(1), part.span(2))
    return CounterSpans(epoch.span(1) if epoch else None, step.span(step.lastindex or 1) if step else None)


def counters(text: str) -> LineCounters:
    return counted(text).read(text)


_PAIR = re.compile(
    r"""(?<![\w./\\=@'"$%<>+-])['"]?([A-Za-z][\w@/.-]{0,80}?)['"]?"""
    r"(\s{0,4}(?<![<>!=+*-])[:=](?![=>])\s{0,8}['\"]?|\s{0,4}[-=]>\s{0,4}|\s(?:is|was|of)(?: now)?\s|\s{1,40})"
    rf"({NUMBER})"
    r"(?:\s?/\s?(\d{1,12})(?=[ ,;)\t]|$)|['\"]?\s?(%)|['\"]?)"
    r"(?![\w@]|[.:,]\d|\.[A-Za-z]|/|\\|\s?\*|\s?[x×]\s|\s?/\s?[\d(])",
    re.ASCII,
)
_REFUSED = re.compile(
    r"(?i:\bwarn|traceback|exception|deprecat|assert)|[a-z]Error\b|\bERROR\b|\bFATAL\b|[=!<>+*-]=|[\d)]\s{0,4}-{1,2}>\s{0,4}[\d.]|\)\s{0,4}->|-->"
    r"|\w\(\w{1,40}=|(?i:\b(?:loaded|resum\w{1,4}|restor\w{1,4}|loading (?:checkpoint|model|weights))\b)"
    r"|\b(?:def|return|import|lambda|self|if|raise|print|elif|None|True|False|args|config|Namespace)\b"
)
# A line with an epoch and a step in brackets reports: whatever has a name and a fraction there is a metric.
_REPORTS = re.compile(
    r"[(\[]epoch:\s{0,8}\d{1,9}, iters?:|\bepoch:? ?\[?\d{1,9}\]?:?\s{0,4}\[\s{0,8}\d{1,12}/\d{1,12}\]", re.IGNORECASE
)
_IN_TABLE = re.compile(r"\s{1,40}[-+]?\d{1,15}(?:\.\d{1,15})?(?:\s|$)")  # a row of numbers below its own header
_WORD = re.compile(r"[A-Za-z]{3,}")
_BEFORE = re.compile(r"[A-Za-z]{1,20}\d?")
_AFTER_NUMBERS = re.compile(r"^.*(?:^|[^A-Za-z\d])\d{1,30}", re.DOTALL)
_TOLD = re.compile(r"\s?%?\s?(?:$|[.,;:|)\]!]|(?:and|after|at|on|in|with)\b)")  # behind `accuracy is 0.93`
_STAMP = re.compile(r"\d{1,4}[-/:]\d\d[-/:]\d\d[\d:,.]{0,12}|\w{1,60}\.py:\d{1,6}")


def spots(text: str, *, counts: bool) -> tuple[MetricSpan, ...]:
    """Where the metrics of a line are; none where it does not look like a line of metrics. `counts`: it contains an
    epoch or a step."""
    if _REFUSED.search(text):
        return ()
    found: dict[str, MetricSpan] = {}
    rest, end, kinds = [], 0, set()
    section = split = ""
    for match in _PAIR.finditer(text):
        gap = text[end : match.start()]
        section = section if end else _section(gap)
        rest.append(gap)
        end = match.end()
        near, words = _beside(gap)
        kind = _kind_of(match, near, words)
        if kind is None:
            continue
        split = near or split
        mine = (split or section) if kind != _BESIDES and not _has_split(match[1]) else ""
        name = "_".join(filter(None, [*words, mine, match[1].lower().rstrip(".-")]))
        kinds.add(kind)
        found.setdefault(name, MetricSpan(name, match.span(1), match.span(3), match.span(4) if match[4] else None))
    wanted = {_IS_SURE, _IS_LIKELY} if counts else {_IS_SURE}
    if not kinds & (wanted | {_BESIDES} if _REPORTS.search(text) else wanted):
        return ()
    strange = sum(word.lower() not in _KNOWN for word in _WORD.findall(_STAMP.sub(" ", " ".join([*rest, text[end:]]))))
    return tuple(found.values()) if strange <= (_MOST_STRANGE_COUNTED if counts else _MOST_STRANGE) else ()


_IS_SURE, _IS_LIKELY, _BESIDES = "sure", "likely", "beside"


def _kind_of(match: re.Match[str], split: str, words: list[str]) -> str | None:
    """The kind of a name with its number; None for what is ignored."""
    number, of, percent = match[3], match[4], match[5]
    kind = _kind(match[1].lower().rstrip(".-"))
    fraction = "." in number or "e" in number.lower() or "n" in number.lower()
    if kind is None or _WISHED & set(words) or not _is_beside(match, fraction=fraction):
        return None
    if kind == _IS_LIKELY and fraction and match[2].strip() and _is_surely(match, split, words):
        kind = _IS_SURE
    if kind == _BESIDES and (percent or of or not (fraction or match[1].lower() == "lr")):
        return None
    return None if of and (fraction or not int(of) or int(number) > int(of)) else kind  # so many of so many


def _is_beside(match: re.Match[str], *, fraction: bool) -> bool:
    """Name and number belong together: what stands between them decides how much the number has to look like one."""
    between, text = match[2], match.string
    if between.strip() in ("", "is", "was", "of", "is now", "was now"):
        if not fraction and not (between.strip() and match[5]):
            return False
        if between.strip():
            return bool(_TOLD.match(text, match.end()))
        alone = match.start() == 0 and match.end() == len(text)
        return (len(between) <= _FAR or alone) and not _IN_TABLE.match(text, match.end())
    return True


_FAR = 8  # blanks between a name and its number, unless nothing else is on the line
_ALONE = _words("score map ap fid r2")


def _is_surely(match: re.Match[str], split: str, words: list[str]) -> bool:
    """A name that may be of something else, in company that leaves no doubt: `Test score: 0.95`, `mAP@0.5: 0.61`."""
    alone = match.start() == 0 and match.end() == len(match.string)
    low = match[1].lower()
    return bool(split or words) or match[1].startswith("mAP") or (alone and low in _ALONE)


@lru_cache(maxsize=4096)
def _kind(name: str) -> str | None:
    """Distinguishes what may appear next to a metric from what may not: timings, sizes and settings."""
    tokens = set(_tokens(name))
    unfit = tokens & _NOT - ({"v"} if tokens & _SURE else set())  # of a value function, and no version
    if unfit or tokens & _COUNTERS or tokens <= _BETWEEN:
        return _IS_SURE if name in ("total_loss", "epoch_loss", "step_loss") else None
    if tokens & _SURE:
        return _IS_SURE
    return _IS_LIKELY if tokens & _LIKELY else _BESIDES


def is_metric(name: str) -> bool:
    """Its name is that of a metric."""
    return _kind(name.lower()) in (_IS_SURE, _IS_LIKELY)


def is_timing(name: str) -> bool:
    return _kind(name.lower()) is None


@lru_cache(maxsize=4096)
def _has_split(name: str) -> bool:
    return any(one in _SPLITS for one in _tokens(name.lower()))


_TOKEN = re.compile(r"[a-z]+(?:\d+(?=$|[^a-z\d]))?")


def _tokens(name: str) -> list[str]:
    found = _TOKEN.findall(name)
    return [one if one in _SURE or one in _LIKELY else one.rstrip("0123456789") for one in found]


def split_of(text: str) -> str:
    """`val` for `Validation set`; empty where it names none."""
    found = _SPLIT.search(text)
    return _SPLITS[found[1].lower()] if found else ""


_SPLIT = re.compile(r"\b(train|training|val|valid|validation|dev|test|testing|eval|evaluation)\b", re.IGNORECASE)


def _section(text: str) -> str:
    """The split at the start of a line applies to the whole line. For training it is omitted."""
    if text.strip() == "*":
        return "test"  # how PyTorch's imagenet ends a validation
    split = split_of(text)
    return "" if split == "train" else split


def _beside(gap: str) -> tuple[str, list[str]]:
    """The split right before a name, and other words there that belong to it."""
    split = ""
    words: list[str] = []
    for word in reversed(_BEFORE.findall(_AFTER_NUMBERS.sub("", gap[-60:]))):
        low = word.lower()
        if low in _SPLITS and not split:
            split = _SPLITS[low]
        elif low in _KEPT or low in _SURE or low in _WISHED:
            words.insert(0, low)
        elif low not in _PLAIN:
            break
    return split, words

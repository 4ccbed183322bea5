"""The kinds of single values that a job holds: texts, paths, numbers, times, money. `fields` says what a kind is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from stoker.errors import Problem
from stoker.model.job.fields import FieldKind, Plain, Problems, encodable, nearest, shown, wrong

_MOST_UP = 3  # folders


@dataclass(eq=False, repr=False)
class Text:
    """A line or more of text. Numbers are refused: YAML's `1.10` would silently become `1.1`."""

    expected: str = "text"
    pattern: str = ""

    def read(self, value: Plain, path: str) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value or not encodable(value):
            raise wrong(path, value, self)
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise wrong(path, value, self)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1} | ({"pattern": f"^(?:{self.pattern})$"} if self.pattern else {})


@dataclass(eq=False, repr=False)
class Whole:
    """A whole number of at least `least`."""

    least: int = 0

    @property
    def expected(self) -> str:
        return f"a whole number, {self.least} or more"

    def read(self, value: Plain, path: str) -> int:
        if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value < 10**9:
            raise wrong(path, value, self)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least}


@dataclass(frozen=True, slots=True)
class NodeRange:
    """As many nodes as are available, between two numbers."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}..{self.most}"


@dataclass(eq=False, repr=False)
class NodeCount:
    """A number of nodes, or a range such as `2..4`. A range of one number is that number."""

    expected: str = "a whole number, 1 or more, or a range such as `2..4`"
    whole: Whole = Whole(1)

    def read(self, value: Plain, path: str) -> int | NodeRange:
        if isinstance(value, NodeRange):
            value = str(value)
        if not isinstance(value, str) or ".." not in value:
            return self._number(value, value, path)
        least, most = (self._number(one.strip(), value, path) for one in value.split("..", 1))
        if least > most:
            raise wrong(path, value, NodeCount(f"the smaller number first: `{most}..{least}`"))
        return NodeRange(least, most) if least < most else most

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.whole.schema(), {"type": "string", "pattern": r"^[1-9]\d{0,8}\.\.[1-9]\d{0,8}$"}]}

    def _number(self, value: Plain, found: Plain, path: str) -> int:
        try:
            return self.whole.read(value, path)
        except Problems:
            raise wrong(path, found, self) from None


@dataclass(eq=False, repr=False)
class Truth:
    """Yes or no."""

    expected: str = "`true` or `false`"

    def read(self, value: Plain, path: str) -> bool:
        if value in ("true", "false"):  # from `--set`
            return bool(value == "true")
        if not isinstance(value, bool):
            raise wrong(path, value, self)
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?")


@dataclass(eq=False, repr=False)
class Duration:
    """A length of time, held as seconds."""

    expected: str = "a time such as `90s`, `30m`, `1h30m` or `2d`"

    def read(self, value: Plain, path: str) -> float:
        seconds = seconds_of(value)
        if seconds is None or not 0 < seconds < 1e10:
            raise wrong(path, value, self)
        return seconds

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "pattern": r"^(\d+(\.\d+)?[dhms] ?)+$"}, {"type": "number"}]}


def seconds_of(value: Plain) -> float | None:
    """What a length of time such as `1h30m` or `90` means; None where it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e10 else None
    found = _DURATION.fullmatch(value.replace(" ", "")) if isinstance(value, str) and len(value) < 40 else None
    if not found or not any(found.groups()):
        return None
    sizes = (86400, 3600, 60, 1)
    return sum(float(part) * size for part, size in zip(found.groups(), sizes, strict=True) if part)


@dataclass(eq=False, repr=False)
class Memory:
    """An amount of memory, held as gigabytes."""

    expected: str = "an amount such as `32GB` or `512MB`"

    def read(self, value: Plain, path: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            amount = float(value) if 0 < value < 1e6 else 0.0
        else:
            found = _MEMORY.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 40 else None
            amount = float(found[1]) * _MEMORY_GB[found[2].lower()[:1]] if found else 0.0
        if not 0 < amount < 1e6:
            raise wrong(path, value, self)
        return amount

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "pattern": rf"^{_MEMORY.pattern}$"}, {"type": "number"}]}


_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?([kKmMgGtT])i?[bB]?")
_MEMORY_GB = {"k": 1e-6, "m": 1e-3, "g": 1.0, "t": 1e3}


@dataclass(eq=False, repr=False)
class Money:
    """An amount in US dollars, held exactly."""

    expected: str = "an amount in dollars such as `$5` or `0.50`"

    @property
    def elsewhere(self) -> Money:
        """What to say to somebody who has another currency in mind: nothing here converts."""
        return Money("an amount in US dollars such as `$5`: clouds bill in them, and no other currency is converted")

    def read(self, value: Plain, path: str) -> Decimal:
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
                raise wrong(path, value, self)
            if isinstance(value, int) and abs(value) >= 10**9:
                raise wrong(path, value, self)
            amount = Decimal(str(value).strip().removeprefix("$").strip())
        except InvalidOperation:
            raise wrong(path, value, self.elsewhere if _is_money(str(value)) else self) from None
        if not amount.is_finite() or not 0 < amount < 10**9:
            raise wrong(path, value, self)
        return amount

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "string", "pattern": r"^\$?\d+(\.\d+)?$"}, {"type": "number"}]}


def _is_money(text: str) -> bool:
    """A number with the sign or the letters of some currency, before or behind it."""
    return bool(re.fullmatch(r"[^\d.,\s-]{1,3}\s*[\d.,]+|[\d.,]+\s*[^\d.,\s]{1,3}", text.strip()))


@dataclass(eq=False, repr=False)
class Choice:
    """One of a few words."""

    of: type[StrEnum]

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(f"`{word}`" for word in self.of)

    def read(self, value: Plain, path: str) -> StrEnum:
        try:
            return self.of(value)
        except ValueError:
            near = nearest(value, list(self.of)) if isinstance(value, str) else ""
            raise wrong(path, value, self, near) from None

    def schema(self) -> dict[str, Any]:
        return {"enum": [str(word) for word in self.of]}


@dataclass(eq=False, repr=False)
class Scalar:
    """The value of an environment variable. Numbers and truth values are taken as they are written."""

    expected: str = "text or a number"

    def read(self, value: Plain, path: str) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int) and abs(value) >= 10**4000:  # Python refuses to spell those out
            raise wrong(path, value, self)
        if not isinstance(value, str | int | float) or "\0" in str(value) or not encodable(str(value)):
            raise wrong(path, value, self)
        return str(value)

    def schema(self) -> dict[str, Any]:
        return {"type": ["string", "number", "boolean"]}


@dataclass(eq=False, repr=False)
class PythonText:
    """A version may be written like the number it looks like: what reads job files keeps `3.10` as it was written."""

    expected: str = "a Python version such as `3.12`, or the path of an interpreter"

    def read(self, value: Plain, path: str) -> str:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return Text(self.expected).read(str(value) if number and abs(value) < 100 else value, path)

    def schema(self) -> dict[str, Any]:
        return {"type": ["string", "number"]}


@dataclass(eq=False, repr=False)
class FolderInTree:
    """A folder inside the run's working directory: relative, and never above it."""

    expected: str = "a relative path inside the working directory"

    def read(self, value: Plain, path: str) -> str:
        text: str = Text(self.expected).read(value, path)
        parts = PurePosixPath(text).parts
        outside = text.startswith("/") or ".." in parts or PureWindowsPath(text).drive or not parts
        if outside or "\n" in text:
            raise wrong(path, value, self)
        return str(PurePosixPath(text))

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


_ASSET = re.compile(r"[a-z][a-z0-9]+:[^/:@\s]+[:@]\S+")
_ADDRESS = re.compile(r"[a-z][a-z0-9]+:\S+")


@dataclass(eq=False, repr=False)
class NotAnAsset:
    """A value of another kind. A name that another service has for something of its own, such as `service:coco@3`, is
    refused with what may be given instead."""

    inner: FieldKind
    instead: str
    pattern: re.Pattern[str] = _ASSET

    @property
    def expected(self) -> str:
        return self.inner.expected

    def read(self, value: Plain, path: str) -> Any:
        if isinstance(value, str) and self.pattern.fullmatch(value):
            raise Problems(Problem(path, shown(value), self.instead))
        return self.inner.read(value, path)

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()


_NO_DATA_ASSET = (
    "a path or a URL. Data that a provider keeps under a name of its own is a `dataset`: "
    "`{dataset: PROVIDER:NAME@VERSION}`"
)
DATASET_NAME = Text("a dataset's name, such as `hymenoptera` or `hymenoptera@3`")
DATA_PATH = NotAnAsset(Text("a path or URL"), _NO_DATA_ASSET)
PACKAGE_FILE = NotAnAsset(
    FolderInTree(),
    "a file of packages; `environment: PROVIDER:NAME@VERSION` is an environment that a provider keeps, and "
    "`image` or `dockerfile` are others",
    _ADDRESS,
)
KEPT_NAME = Text("a name such as `PROVIDER:NAME@VERSION`", _ASSET.pattern)


def is_kept(name: str) -> bool:
    """Whether this is what a provider keeps, and no file or dataset of ours."""
    return _ASSET.fullmatch(name) is not None


@dataclass(eq=False, repr=False)
class FolderOfTree(FolderInTree):
    """Also the working directory itself."""

    def read(self, value: Plain, path: str) -> str:
        return "." if value in (".", "./") else super().read(value, path)


@dataclass(eq=False, repr=False)
class PlaceForData(FolderInTree):
    """Also outside the working directory, a few folders up, such as `../data`: the run has a private folder there."""

    expected: str = f"a relative path, at most {_MOST_UP} folders above the working directory"

    def read(self, value: Plain, path: str) -> str:
        text: str = Text(self.expected).read(value, path)
        parts = PurePosixPath(text).parts
        up = next((number for number, part in enumerate(parts) if part != ".."), len(parts))
        if not 0 < up <= _MOST_UP or up == len(parts):
            return super().read(value, path)
        return "/".join([*parts[:up], super().read("/".join(parts[up:]), path)])


_NOT_TEXTS = ("null", "true", "false", "yes", "no", "on", "off")  # to YAML


def as_input(path: str) -> str:
    """What to write under `data` so that a script finds this path of the source: `data: {path: data, at: data}`."""
    words = re.sub(r"\W+", "_", PurePosixPath(path).stem).strip("_").lower()
    plain = re.fullmatch(r"[A-Za-z_./][\w./-]*", path) and path.lower() not in _NOT_TEXTS
    written = path if plain else json.dumps(path, ensure_ascii=False)
    return f"{words if words.isidentifier() else 'data'}: {{path: {written}, at: {written}}}"


@dataclass(eq=False, repr=False)
class CheckpointPath(FolderInTree):
    """A folder, a file or a glob; a final `/` says that it is a folder, and is kept."""

    expected: str = "a relative path or glob inside the working directory"

    def read(self, value: Plain, path: str) -> str:
        read = super().read(value, path)
        return f"{read}/" if isinstance(value, str) and value.endswith("/") else read

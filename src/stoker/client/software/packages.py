"""The packages of an interpreter, from the names of its folders, and requirements with their markers (PEP 508)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TOKEN = re.compile(r"\s*(?:([\"'])(?P<text>.*?)\1|(?P<op><=|>=|==|!=|~=|<|>|\(|\))|(?P<word>[A-Za-z_][\w.]*))")
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"extra\s*==\s*[\"']([^\"']+)[\"']")


@dataclass(frozen=True, slots=True)
class Requirement:
    name: str  # normal
    extras: frozenset[str] = frozenset()
    marker: str = ""

    @property
    def groups(self) -> list[str]:
        """The extras of its owner that require it."""
        return [normal(one) for one in _EXTRA.findall(self.marker)]

    def holds(self, surroundings: Mapping[str, str], extras: frozenset[str] = frozenset()) -> bool:
        """Whether it is required, for an owner with these extras. A marker that cannot be parsed counts as true."""
        if not self.marker:
            return True
        try:
            return any(_MarkerReader(self.marker, {**surroundings, "extra": one}).read() for one in extras or {""})
        except (ValueError, IndexError):
            return True


def normal(name: str) -> str:
    """A package's normalized name: `My_Pkg` is `my-pkg`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse(text: str) -> Requirement | None:
    """One requirement, as in metadata and requirements files; None if it is not one."""
    head, _, marker = text.partition(" ;") if " @ " in text else text.partition(";")
    found = _NAME.match(head)
    if not found:
        return None
    extras = frozenset(normal(one.strip()) for one in (found[2] or "").split(",") if one.strip())
    return Requirement(normal(found[1]), extras, marker.strip())


def cloud(python: str) -> dict[str, str]:
    """The values of markers on machines of clouds. `python` is a version such as `3.11.4`."""
    parts = python.split(".")
    return {
        "python_version": ".".join(parts[:2]),
        "python_full_version": python if len(parts) > 2 else f"{python}.0",
        "implementation_name": "cpython",
        "implementation_version": python,
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "platform_release": "",
        "platform_version": "",
    }


class _MarkerReader:
    """`or` binds less than `and`; both sides are read, as nothing here has an effect."""

    def __init__(self, marker: str, values: Mapping[str, str]) -> None:
        self._values = values
        self._tokens: list[tuple[str, bool]] = []  # the second says that it is quoted
        place = 0
        while place < len(marker.rstrip()):
            found = _TOKEN.match(marker, place)
            if not found:
                raise ValueError(marker)
            quoted = found["text"] is not None
            self._tokens.append((found["text"] if quoted else found["op"] or found["word"], quoted))
            place = found.end()

    def read(self) -> bool:
        held = self._either()
        if self._tokens:
            raise ValueError("trailing text")
        return held

    def _either(self) -> bool:
        held = self._both()
        while self._next_is("or"):
            held = self._both() or held
        return held

    def _both(self) -> bool:
        held = self._one()
        while self._next_is("and"):
            held = self._one() and held
        return held

    def _one(self) -> bool:
        if self._next_is("("):
            held = self._either()
            if not self._next_is(")"):
                raise ValueError("unclosed parenthesis")
            return held
        left = self._value()
        operator = self._tokens.pop(0)[0]
        if operator == "not":
            operator = f"not {self._tokens.pop(0)[0]}"
        return _compared(left, operator, self._value())

    def _next_is(self, word: str) -> bool:
        if self._tokens and self._tokens[0] == (word, False):
            self._tokens.pop(0)
            return True
        return False

    def _value(self) -> str:
        text, quoted = self._tokens.pop(0)
        return text if quoted else self._values.get(text.replace(".", "_"), "")


def _compared(left: str, operator: str, right: str) -> bool:
    if operator in ("in", "not in"):
        return (left in right) == (operator == "in")
    if operator in ("==", "!=") and right.endswith(".*"):
        return (f"{left}.".startswith(right[:-1])) == (operator == "==")
    first, second = _version_parts(left), _version_parts(right)
    if first is None or second is None:
        return (normal(left) == normal(right)) == (operator == "==") if operator in ("==", "!=") else False
    if operator == "~=":
        return first >= second and first[: len(right.split(".")) - 1] == second[: len(right.split(".")) - 1]
    return {
        "==": first == second,
        "!=": first != second,
        "<": first < second,
        "<=": first <= second,
        ">": first > second,
        ">=": first >= second,
    }[operator]


def _version_parts(text: str) -> tuple[int, ...] | None:
    """Filled up, so that `3.11` equals `3.11.0`."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    if not found:
        return None
    parts = [int(part) for part in found[0].split(".")]
    return tuple(parts + [0] * (6 - len(parts)))


PYTHON = "python"  # the name under which the interpreter's own version is listed


def packages_of(python: str) -> dict[str, str]:
    """Name to version, sorted. An interpreter whose packages cannot be found gives an empty dict, never an error."""
    found: dict[str, str] = {}
    for folder in folders_of(python):
        with suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208  # names only: thousands of Paths would cost more
                if name.endswith((".dist-info", ".egg-info")):
                    package, _, version = name.rpartition(".")[0].partition("-")
                    found.setdefault(package.lower().replace("_", "-").replace(".", "-"), version.partition("-py")[0])
    version = _version(python)
    return ({PYTHON: version} if version else {}) | dict(sorted(found.items()))


def folders_of(python: str) -> Iterator[Path]:
    """In search order: the first version of a package is the one that is imported."""
    if python == sys.executable:
        yield from (Path(place) for place in sys.path if place.endswith(("site-packages", "dist-packages")))
        return
    prefix = _prefix(python)
    yield from _libraries(prefix)
    settings = _virtual(prefix)
    if settings.get("include-system-site-packages") == "true" and settings.get("home"):
        yield from _libraries(Path(settings["home"]).parent)


def _libraries(prefix: Path) -> Iterator[Path]:
    for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"):
        yield from sorted(prefix.glob(pattern))
    yield prefix / "Lib" / "site-packages"


def _version(python: str) -> str:
    if python == sys.executable:
        return ".".join(str(part) for part in sys.version_info[:3])
    prefix = _prefix(python)
    settings = _virtual(prefix)
    told = settings.get("version") or settings.get("version_info", "")
    if told:
        return ".".join(told.split(".")[:3])
    return next((path.name.removeprefix("python") for path in sorted(prefix.glob("lib/python3.*"))), "")


def _prefix(python: str) -> Path:
    folder = Path(python).absolute().parent
    return folder.parent if folder.name in ("bin", "Scripts") else folder


def _virtual(prefix: Path) -> dict[str, str]:
    """The configuration of a virtual environment; empty if it is not one."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}

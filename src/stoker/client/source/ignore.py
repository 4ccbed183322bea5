"""What a folder's `.gitignore` and `.stokerignore` exclude, by git's own rules, byte for byte.

A pattern without a wildcard becomes a member of a set; the others are joined into a few regular expressions, so that
a file costs a handful of look-ups however long the ignore files are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

STOKERIGNORE = ".stokerignore"
FILES = (".gitignore", STOKERIGNORE)  # in the order they are read: the second can overrule the first
ALWAYS = frozenset({".git", "__pycache__", ".ipynb_checkpoints", ".DS_Store", ".stoker"})
VENV_MARK = "pyvenv.cfg"  # a folder with this file is a virtual environment


class Ignore:
    """What is excluded in one folder of a tree, and in those below it without ignore files of their own."""

    def __init__(self, layers: tuple[_Layer, ...] = ()) -> None:
        self._layers = layers  # the deepest folder first: it decides

    @classmethod
    def above(cls, root: Path) -> Ignore:
        """The rules that apply to `root` from the folders above it, up to the top of its git repository.

        A root that these rules exclude was chosen on purpose, so then they do not count.
        """
        root = root.resolve()
        tops = [] if (root / ".git").exists() else [up for up in root.parents if (up / ".git").exists()]
        if not tops:
            return cls()
        ignore, folder = cls(), ""
        for part in root.relative_to(tops[0]).parts:
            ignore = ignore.entering(folder, rules_of(tops[0] / folder))
            if ignore.excludes(part, folder + part, is_folder=True):
                return cls()
            folder += f"{part}/"
        lead = _bytewise(folder)
        return cls(tuple(_Layer(layer.rules, lead[layer.cut :], 0) for layer in ignore._layers))

    def entering(self, folder: str, rules: Rules | None) -> Ignore:
        """The same, with the rules of `folder` added (relative, empty or with a final `/`)."""
        return Ignore((_Layer(rules, "", len(_bytewise(folder))), *self._layers)) if rules else self

    def excludes(self, name: str, path: str, is_folder: bool) -> bool:
        """Whether `path`, whose last part is `name`, is excluded, given that the folders above it are not."""
        if name in ALWAYS:
            return True
        if not path.isascii():
            name, path = _bytewise(name), _bytewise(path)
        for layer in self._layers:
            verdict = layer.verdict(name, path, is_folder)
            if verdict is not None:
                return verdict
        return False


class Rules:
    """The patterns of one folder's ignore files, compiled for matching."""

    def __init__(self, data: bytes) -> None:
        patterns = list(_patterns(data))
        self.for_folders = _Matcher(patterns)
        self.for_files = _Matcher([one for one in patterns if not one.folders_only])


def rules_of(folder: Path) -> Rules | None:
    """The rules of the ignore files in this folder, or None if it has none that can be read."""
    data = [read for name in FILES if (read := _content(folder / name)) is not None]
    return Rules(b"\n".join(data)) if data else None


def included_on_purpose(root: Path, path: str) -> bool:
    """A `.stokerignore` of the tree includes this file with a pattern that begins with `!`."""
    name, folder = path.rpartition("/")[2], path.rpartition("/")[0]
    while True:
        data = _content(root / folder / STOKERIGNORE)
        inside = path[len(folder) + 1 :] if folder else path
        verdict = Rules(data).for_files.verdict(_bytewise(name), _bytewise(inside)) if data else None
        if verdict is not None or not folder:
            return verdict is False
        folder = folder.rpartition("/")[0]


class _Layer:
    """One folder's rules, and how a path becomes relative to that folder."""

    __slots__ = ("cut", "lead", "rules")

    def __init__(self, rules: Rules, lead: str, cut: int) -> None:
        self.rules = rules
        self.lead = lead  # prefix for the path, if the folder is above the root
        self.cut = cut  # characters to drop from its start, if the folder is below

    def verdict(self, name: str, path: str, is_folder: bool) -> bool | None:
        """True: excluded. False: included. None: no pattern matches."""
        matcher = self.rules.for_folders if is_folder else self.rules.for_files
        return matcher.verdict(name, self.lead + path[self.cut :])


class _Matcher:
    """Most files match nothing, so all patterns are tried at once before the runs are tried one by one."""

    __slots__ = ("_any", "_runs")

    def __init__(self, patterns: list[_Pattern]) -> None:
        self._any = _Run(patterns)
        # The last pattern that matches decides, so the last run comes first.
        runs = groupby(reversed(patterns), key=lambda one: one.negated)
        self._runs = [(not negated, _Run(list(run))) for negated, run in runs]

    def verdict(self, name: str, path: str) -> bool | None:
        if not self._any.has(name, path):
            return None
        return next(excludes for excludes, run in self._runs if run.has(name, path))


class _Run:
    """Adjacent patterns with the same effect: which of them matches does not matter."""

    __slots__ = ("_endings", "_name_globs", "_names", "_path_globs", "_paths")

    def __init__(self, patterns: list[_Pattern]) -> None:
        plain: tuple[list[str], list[str]] = ([], [])  # names, and those that are anchored
        globs: tuple[list[str], list[str]] = ([], [])
        endings: list[str] = []
        for one in patterns:
            if not _SPECIAL.search(one.text):
                plain[one.anchored].append(one.text)
            elif not one.anchored and one.text[0] == "*" and not _SPECIAL.search(one.text, 1):
                endings.append(one.text[1:])
            else:
                globs[one.anchored].append(one.text)
        self._names, self._paths = map(frozenset, plain)
        self._name_globs, self._path_globs = map(_joined, globs)
        self._endings = tuple(endings)

    def has(self, name: str, path: str) -> bool:
        return bool(
            name in self._names
            or path in self._paths
            or name.endswith(self._endings)
            or (self._name_globs and self._name_globs.fullmatch(name))
            or (self._path_globs and self._path_globs.fullmatch(path))
        )


class _Pattern(NamedTuple):
    negated: bool
    folders_only: bool
    anchored: bool  # matched against the path from its folder on, not against the name alone
    text: str


def _content(path: Path) -> bytes | None:
    try:
        return None if path.is_symlink() else path.read_bytes()  # git does not follow a linked ignore file either
    except OSError:
        return None


def _bytewise(text: str) -> str:
    """One character per byte: git matches bytes, so that `?` is not a match for `é`."""
    return text if text.isascii() else os.fsencode(text).decode("latin-1")


def _patterns(data: bytes) -> Iterator[_Pattern]:
    for line in data.removeprefix(b"\xef\xbb\xbf").decode("latin-1").split("\n"):
        text = _trimmed(line.removesuffix("\r"))
        if text.startswith("#"):
            continue
        negated = text.startswith("!")
        text = text[negated:]
        folders_only = text.endswith("/")
        text = text.removesuffix("/")
        anchored = "/" in text
        text = text.removeprefix("/")
        if text:
            yield _Pattern(negated, folders_only, anchored, text)


def _trimmed(line: str) -> str:
    """Without its spaces at the end, except one that a backslash protects."""
    kept = line.rstrip(" ")
    backslashes = len(kept) - len(kept.rstrip("\\"))
    return line[: len(kept) + 1] if backslashes % 2 else kept


def _joined(globs: list[str]) -> re.Pattern[str] | None:
    sources = [source for glob in globs if (source := _regex(glob)) is not None]
    return re.compile("|".join(sources), re.DOTALL) if sources else None


_SPECIAL = re.compile(r"[*?\[\\]")


def _regex(glob: str) -> str | None:
    """A regular expression for one pattern; None if it is malformed, which git treats as matching nothing."""
    found = _SPECIAL.search(glob)
    start = found.start() if found else len(glob)
    # git compares the plain beginning first and matches the rest on its own, so a `**` right after it stands at a
    # beginning too: `foo**/bar` matches `foobar`.
    tokens = _tokens(glob[start:])
    return None if tokens is None else re.escape(glob[:start]) + _source(tokens)


_STAR, _DEEP, _REST, _SLASH = "*", "**/", "**", "/"  # tokens that are not the regular expression of one character
_SOURCES = {_DEEP: "(?:.*/)?", _REST: ".*", _SLASH: "/"}


def _tokens(glob: str) -> list[str] | None:
    tokens = []
    at = 0
    while at < len(glob):
        one = glob[at]
        if one == "*":
            token, at = _stars(glob, at)
        elif one == "[":
            found = _bracket(glob, at + 1)
            if found is None:
                return None
            token, at = found
        elif one == "?":
            token, at = "[^/]", at + 1
        else:
            at += one == "\\"
            if at == len(glob):
                return None
            token, at = _SLASH if glob[at] == "/" else re.escape(glob[at]), at + 1
        tokens.append(token)
    return tokens


def _stars(glob: str, start: int) -> tuple[str, int]:
    """Two or more stars match folders if they stand alone between slashes; elsewhere they are one star."""
    end = start
    while glob[end : end + 1] == "*":
        end += 1
    alone = end - start > 1 and (start == 0 or glob[start - 1] == "/")
    if alone and glob[end : end + 1] == "/":
        return _DEEP, end + 1
    return (_REST if alone and (end == len(glob) or glob[end : end + 2] == "\\/") else _STAR), end


def _source(tokens: list[str]) -> str:
    """A star before another star of the same part need not be retried once the text between them is found:
    the atomic group keeps `*a*a*a*b` from taking time that grows with a power of the name's length."""
    out = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token != _STAR:
            out.append(_SOURCES.get(token, token))
            continue
        end = at
        while end < len(tokens) and tokens[end] != _STAR and tokens[end] not in _SOURCES:
            end += 1
        text = "".join(tokens[at:end])
        out.append(f"(?>[^/]*?{text})" if end < len(tokens) and tokens[end] == _STAR else f"[^/]*{text}")
        at = end
    return "".join(out)


_LOWER, _UPPER, _DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
_GRAPH = "".join(map(chr, range(33, 127)))
_CLASSES = {
    "alnum": _LOWER + _UPPER + _DIGITS,
    "alpha": _LOWER + _UPPER,
    "blank": " \t",
    "cntrl": "".join(map(chr, range(32))) + "\x7f",
    "digit": _DIGITS,
    "graph": _GRAPH,
    "lower": _LOWER,
    "print": _GRAPH + " ",
    "punct": "".join(one for one in _GRAPH if not one.isalnum()),
    "space": " \t\n\r",
    "upper": _UPPER,
    "xdigit": _DIGITS + "abcdefABCDEF",
}


def _bracket(glob: str, at: int) -> tuple[str, int] | None:
    """The set that starts at `at`, just after its `[`, and where it ends; None if it is never closed."""
    negated = glob[at : at + 1] in ("!", "^")
    at += negated
    members: set[str] = set()
    previous = ""  # what a range would start from
    first = True
    while first or glob[at : at + 1] != "]":
        first = False
        one = glob[at : at + 1]
        if one == "-" and previous and glob[at + 1 : at + 2] not in ("", "]"):
            at += 2 if glob[at + 1] == "\\" else 1
            members.update(map(chr, range(ord(previous), ord(glob[at]) + 1) if at < len(glob) else ()))
            previous = ""
        elif one == "[" and (found := re.match(r"\[:([^]]*):\]", glob[at:])):
            if found[1] not in _CLASSES:
                return None
            members.update(_CLASSES[found[1]])
            previous, at = "", at + found.end() - 1
        else:
            at += one == "\\"
            previous = glob[at : at + 1]
            members.add(previous)
        if at >= len(glob):
            return None
        at += 1
    listed = "".join(map(re.escape, sorted((members | {"/"}) if negated else (members - {"/"}))))
    return (f"[^{listed}]" if negated else f"[{listed}]" if listed else "(?!)"), at + 1

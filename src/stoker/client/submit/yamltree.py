"""YAML text as plain data in which every key and value knows its line and column.

Scalars follow YAML 1.2: only `true` and `false` are booleans, so that `on:` is a key like any other, and there are no
dates and no base-60 numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from stoker.errors import Problem

_MOST_VALUES = 10_000  # aliases count as often as they are used: a few lines can expand to billions
_MOST_DEPTH = 30
_CORE = "tag:yaml.org,2002:"

_NULLS = ("", "~", "null", "Null", "NULL")
_TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# Kept as text: most files need none of them, and compiling all would cost 6 ms at every start.
_WHOLE = r"[-+]?[0-9]{1,100}|0o[0-7]{1,100}|0x[0-9a-fA-F]{1,100}"
_REAL = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
_CONTROL = "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


class TextPosition(NamedTuple):
    """A position in the text; both start at 1."""

    line: int
    column: int


class Misread(Exception):
    """The text is not valid YAML for a job."""

    def __init__(self, at: TextPosition, field: str, found: str, expected: str) -> None:
        self.problem = Problem(field or "job", found, expected, line=at.line, column=at.column)
        super().__init__(self.problem)


class YamlTree:
    """Plain data and the position of each part, by path: `spot.max_price`, `checkpoints[1]`."""

    def __init__(self) -> None:
        self.data: Any = None
        self.values: dict[str, TextPosition] = {}
        self.keys: dict[str, TextPosition] = {}
        self.repeated: list[Problem] = []  # duplicate keys


class WrittenInt(int):
    """A number that keeps its spelling: `007` in `env` is not `7`."""

    text: str

    def __str__(self) -> str:
        return self.text


class WrittenFloat(float):
    text: str

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> YamlTree:
    """Raises Misread at the first unreadable part; duplicate keys are only recorded."""
    root = _compose(text)
    if root is None:
        raise Misread(TextPosition(1, 1), "job", "an empty file", "a mapping with `name` and `run`")
    tree = YamlTree()
    tree.data = _Flattening(tree).plain(root, "", 0)
    return tree


def scalar(text: str) -> Any:
    """The value of a plain scalar."""
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return _TRUTHS[text]
    if text[0] not in "+-.0123456789":
        return text
    if re.fullmatch(_WHOLE, text):
        whole = WrittenInt(int(text, 0) if text[:2] in ("0o", "0x") else int(text))
        whole.text = text
        return whole
    if re.fullmatch(_REAL, text):
        real = WrittenFloat(float(text.replace(".", "", 1) if text.lstrip("+-")[:2].lower() in (".i", ".n") else text))
        real.text = text
        return real
    return text


class _Node:
    """`content` is text, a list of nodes, or a list of pairs of nodes; None while it is being read."""

    __slots__ = ("at", "content", "kind", "plain", "tag")

    def __init__(
        self, at: TextPosition, kind: str, content: Any = None, tag: str | None = None, plain: bool = False
    ) -> None:
        self.at = at
        self.kind = kind
        self.content = content
        self.tag = tag
        self.plain = plain


def _compose(text: str) -> _Node | None:
    import yaml  # 23 ms: only when there is a file to read

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _document(iter(yaml.parse(text, Loader=loader)))
    except yaml.MarkedYAMLError as error:
        raise _syntax(text, error) from None
    except yaml.YAMLError:
        raise _unreadable(text) from None


def _document(events: Iterator[Any]) -> _Node | None:
    """The only document, built without recursion: the text decides how deep it is."""
    anchors: dict[str, _Node] = {}
    top: list[_Node] = []
    opened: list[tuple[_Node, list[_Node]]] = []
    for event in events:
        what = type(event).__name__
        at = TextPosition(event.start_mark.line + 1, event.start_mark.column + 1)
        if what == "DocumentStartEvent" and top:
            raise Misread(at, "job", "a second document", "one job in a file")
        if what in ("SequenceEndEvent", "MappingEndEvent"):
            node, parts = opened.pop()
            node.content = parts if node.kind == "list" else list(zip(parts[::2], parts[1::2], strict=True))
            continue
        found = _node(what, event, at, anchors)
        if found is None:
            continue
        (opened[-1][1] if opened else top).append(found)
        if what in ("SequenceStartEvent", "MappingStartEvent"):
            opened.append((found, []))
            if len(opened) > _MOST_DEPTH:
                raise Misread(at, "job", "values inside values inside values", _LIMIT)
    return top[0] if top else None


_LIMIT = f"at most {_MOST_DEPTH} levels, and {_MOST_VALUES} values in all"


def _node(what: str, event: Any, at: TextPosition, anchors: dict[str, _Node]) -> _Node | None:
    if what == "AliasEvent":
        known = anchors.get(event.anchor)
        if known is None:
            raise Misread(at, "job", f"`*{event.anchor}`", f"an anchor `&{event.anchor}` before it")
        if known.content is None:
            raise Misread(at, "job", f"`*{event.anchor}` inside itself", "a value without a cycle")
        return _Node(at, "alias", known)
    if what == "ScalarEvent":
        node = _Node(at, "scalar", event.value, event.tag, bool(event.implicit[0]) and event.tag is None)
    elif what == "SequenceStartEvent":
        node = _Node(at, "list", tag=event.tag)
    elif what == "MappingStartEvent":
        node = _Node(at, "map", tag=event.tag)
    else:
        return None
    if event.anchor:
        anchors[event.anchor] = node
    return node


class _Flattening:
    """Turns nodes into plain data and records the position of each path."""

    def __init__(self, tree: YamlTree) -> None:
        self._tree = tree
        self._count = 0

    def plain(self, node: _Node, path: str, depth: int) -> Any:
        tree, at = self._tree, node.at
        tree.values[path] = at  # that of an alias, not of its anchor: there the value is used
        while node.kind == "alias":
            node = node.content
        self._count += 1
        if depth > _MOST_DEPTH or self._count > _MOST_VALUES:
            raise Misread(at, path, "values inside values inside values", _LIMIT)
        if node.tag not in _TAGS[node.kind]:
            raise Misread(at, path, f"the tag `{node.tag}`", "no tag")
        if node.kind == "scalar":
            return scalar(node.content) if node.plain else self._tagged(node, path, at)
        if node.kind == "list":
            return [self.plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(node.content)]
        return self._mapping(node, path, depth)

    def _mapping(self, node: _Node, path: str, depth: int) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for key, value in node.content:
            at = key.at
            while key.kind == "alias":
                key = key.content
            if key.kind != "scalar":
                raise Misread(at, path, "a key that is not text", "text")
            name = str(key.content)
            where = f"{path}.{name}" if path else name
            if name in read:
                self._tree.repeated.append(Problem(where, "the key a second time", "each key once", "", *at))
            else:
                self._tree.keys[where] = at
                read[name] = self.plain(value, where, depth + 1)
        return read

    def _tagged(self, node: _Node, path: str, at: TextPosition) -> Any:
        """Quoted or tagged. A tag must match the text's own type."""
        if node.tag in (None, "!", _CORE + "str"):
            return node.content
        value = scalar(node.content)
        if not isinstance(value, _MEANT[node.tag.removeprefix(_CORE)]):
            raise Misread(at, path, f"`{node.content}` tagged `{node.tag}`", "a value that fits its tag")
        return value


_MEANT: dict[str, Any] = {"int": int, "float": float, "bool": bool, "null": type(None)}
_TAGS: dict[str, tuple[str | None, ...]] = {
    "scalar": (None, "!", *(_CORE + name for name in ("str", *_MEANT))),
    "list": (None, "!", _CORE + "seq"),
    "map": (None, "!", _CORE + "map"),
}


def _syntax(text: str, error: Any) -> Misread:
    """The parser's error, as text for people who do not know its grammar."""
    said, context = str(error.problem or error.context or ""), str(error.context or "")
    mark = error.problem_mark or error.context_mark
    at = TextPosition(mark.line + 1, mark.column + 1) if mark else TextPosition(1, 1)
    lines = text.splitlines()
    line = lines[at.line - 1] if at.line <= len(lines) else ""
    here = line[at.column - 1 : at.column]
    at_end = not (line[at.column - 1 :] + "".join(lines[at.line :])).strip()
    if at_end and error.context_mark and ("quoted" in context or "flow" in context):
        # Where the quote or bracket was opened says more than where the file ends.
        opened = TextPosition(error.context_mark.line + 1, error.context_mark.column + 1)
        return Misread(opened, "yaml", "a quote or bracket that is not closed", "its end")
    if here == "\t" or "\t" in line[: len(line) - len(line.lstrip())]:
        return Misread(
            TextPosition(at.line, line.index("\t") + 1), "yaml", "a tab", "spaces: YAML does not indent with tabs"
        )
    if "mapping values" in said:
        return Misread(
            at, "yaml", "a `:` in the middle of a value", "quotes around text with `: ` in it, or a new line"
        )
    if "cannot start any token" in said:
        return Misread(at, "yaml", f"`{here}`", f"quotes around text that begins with `{here}`")
    if wanted := re.search(r"expected (.+?)(?:, but .*)?$", said):
        return Misread(at, "yaml", f"`{here}`" if here else "the end of a line", wanted[1].replace("'", "`"))
    return Misread(at, "yaml", said.removeprefix("found ") or "something unreadable", "YAML")


def _unreadable(text: str) -> Misread:
    found = re.search(_CONTROL, text)
    start = found.start() if found else 0
    at = TextPosition(text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))
    return Misread(at, "yaml", f"the character {text[start : start + 1]!r}", "readable text")

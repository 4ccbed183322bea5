"""What Azure accepts as text: lenient JSON, and the part of OData's `$filter` that its clients use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stoker.twin.refusal import invalid

_MOST_DEEP = 100  # whoever walks through a body later has not to ask
_DEEP = f"it is nested more than {_MOST_DEEP} deep"
_JSON_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<double>"(?:[^"\\]|\\.)*")
      | (?P<single>'(?:[^'\\]|\\.)*')
      | (?P<sign>[{}\[\]:,])
      | (?P<word>[^\s{}\[\]:,"']+)""",
    re.VERBOSE | re.DOTALL,
)


def loads(text: str) -> Any:
    """Raises ValueError where not even this parses."""
    try:
        try:
            value = json.loads(text)
        except ValueError:
            value = json.loads(_strict(text))
    except RecursionError:
        raise ValueError(_DEEP) from None
    layer = [value]
    for _ in range(_MOST_DEEP):
        layer = [inner for one in layer for inner in _inside(one)]
    if layer:
        raise ValueError(_DEEP)
    return value


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _strict(text: str) -> str:
    tokens = [token for token in _tokens(text) if token]
    made = []
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token == "," and following in ("}", "]"):
            continue
        bare = following == ":" and token[0] not in '"{}[]:,'
        made.append(json.dumps(token) if bare else token)
    return "".join(made)


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        match = _JSON_TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"unexpected {text[at]!r} at character {at}")
        at = match.end()
        if match["double"]:
            found.append(_one_line(match["double"]))
        elif match["single"]:
            found.append(_one_line('"' + match["single"][1:-1].replace("\\'", "'").replace('"', '\\"') + '"'))
        elif not match["space"]:
            found.append(match[0])
    return found


def _one_line(string: str) -> str:
    return string.replace("\r\n", "\\n").replace("\n", "\\n").replace("\t", "\\t")


Test = Callable[[Mapping[str, Any]], bool]
Value = Callable[[Mapping[str, Any]], Any]

_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|\(|\)|,|[^\s(),]+)")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: bool(a == b),
    "ne": lambda a, b: bool(a != b),
    "gt": lambda a, b: bool(a > b),
    "ge": lambda a, b: bool(a >= b),
    "lt": lambda a, b: bool(a < b),
    "le": lambda a, b: bool(a <= b),
}
_FUNCTIONS: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda a, b: b in a,
    "startswith": lambda a, b: a.startswith(b),
    "endswith": lambda a, b: a.endswith(b),
    "substringof": lambda a, b: a in b,
}


def parse(text: str) -> Test:
    """A test of items. A syntax error is answered with 400, as in Azure."""
    reader = _FilterReader(_TOKEN.findall(text))
    test = reader.alternatives()
    if reader.left():
        raise invalid(f"Invalid $filter '{text}': unexpected '{reader.next()}'", "InvalidFilterInQueryString")
    return test


class _FilterReader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def left(self) -> bool:
        return self._at < len(self._tokens)

    def next(self) -> str:
        if not self.left():
            raise invalid("Invalid $filter: unexpected end", "InvalidFilterInQueryString")
        self._at += 1
        return self._tokens[self._at - 1]

    def comes(self, word: str) -> bool:
        """Whether this is the next word, which is then consumed."""
        if self.left() and self._tokens[self._at].lower() == word:
            self._at += 1
            return True
        return False

    def alternatives(self) -> Test:
        tests = [self.conditions()]
        while self.comes("or"):
            tests.append(self.conditions())
        return lambda item: any(test(item) for test in tests)

    def conditions(self) -> Test:
        tests = [self.condition()]
        while self.comes("and"):
            tests.append(self.condition())
        return lambda item: all(test(item) for test in tests)

    def condition(self) -> Test:
        if self.comes("not"):
            inner = self.condition()
            return lambda item: not inner(item)
        if self.comes("("):
            inner = self.alternatives()
            self.expect(")")
            return inner
        word = self.next()
        if word.lower() in _FUNCTIONS:
            return self.function(word)
        return self.comparison(word)

    def function(self, word: str) -> Test:
        self.expect("(")
        first = _value(self.next())
        self.expect(",")
        second = _value(self.next())
        self.expect(")")
        apply = _FUNCTIONS[word.lower()]
        test: Test = lambda item: apply(str(first(item) or ""), str(second(item) or ""))  # noqa: E731
        if not self.comes("eq") or self.comes("true"):  # `startswith(…) eq true`
            return test
        self.expect("false")
        return lambda item: not test(item)

    def comparison(self, word: str) -> Test:
        operator = self.next().lower()
        if operator not in _COMPARE:
            raise invalid(f"Invalid $filter: '{operator}' is not a comparison", "InvalidFilterInQueryString")
        left, right, compare = _value(word), _value(self.next()), _COMPARE[operator]
        return lambda item: compare(left(item), right(item))

    def expect(self, word: str) -> None:
        if not self.comes(word):
            raise invalid(f"Invalid $filter: expected '{word}'", "InvalidFilterInQueryString")


def _value(token: str) -> Value:
    if token.startswith("'"):
        text = token[1:-1].replace("''", "'")
        return lambda _: text
    if token.lower() in ("true", "false"):
        truth = token.lower() == "true"
        return lambda _: truth
    try:
        number = float(token)
    except ValueError:
        return lambda item: item.get(token)
    return lambda _: number

"""Conditions of role assignments, in Azure's own language, as far as they say which role may be given to whom.

Understood: `ActionMatches{'…'}`, `@Request[…]` and `@Resource[…]` with the operators below, `AND`, `OR`, `!` and
brackets. A condition that cannot be read never holds: what the twin does not understand it does not allow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"\s*(?:(?P<action>ActionMatches\s*\{\s*'[^']*'\s*\})|(?P<attribute>@\w+\[[^\]]+\])|(?P<set>\{[^}]*\})"
    r"|(?P<sign>\(|\)|!|&&|\|\|)|(?P<word>[A-Za-z]+(?::[A-Za-z]+)?))"
)
_EQUAL = {"GuidEquals", "StringEquals", "StringEqualsIgnoreCase"}
_UNEQUAL = {"GuidNotEquals", "StringNotEquals", "StringNotEqualsIgnoreCase"}
_ANY, _NONE = "ForAnyOfAnyValues", "ForAnyOfAllValues"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a condition can ask: the action, what the request says, and what is there already. Names as in Azure:
    `RoleDefinitionId`, `PrincipalId`, `PrincipalType`."""

    action: str
    request: Mapping[str, str] = field(default_factory=dict)
    resource: Mapping[str, str] = field(default_factory=dict)


def holds(condition: str, facts: Facts) -> bool:
    try:
        return _Reader(condition, facts).whole()
    except ValueError:
        return False


class _Reader:
    """By recursive descent. Both sides of `AND` and `OR` are always read."""

    def __init__(self, text: str, facts: Facts) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._facts = facts

    def whole(self) -> bool:
        value = self._either()
        if self._peek():
            raise ValueError(f"unexpected {self._peek()}")
        return value

    def _either(self) -> bool:
        value = self._both()
        while self._peek().upper() in ("OR", "||"):
            self._take()
            value = self._both() or value
        return value

    def _both(self) -> bool:
        value = self._one()
        while self._peek().upper() in ("AND", "&&"):
            self._take()
            value = self._one() and value
        return value

    def _one(self) -> bool:
        token = self._take()
        if token == "!":
            return not self._one()
        if token == "(":
            value = self._either()
            if self._take() != ")":
                raise ValueError("a bracket is not closed")
            return value
        if token.startswith("ActionMatches"):
            return token.split("'")[1].lower() == self._facts.action.lower()
        if token.startswith("@"):
            return self._compared(token)
        raise ValueError(f"unexpected {token}")

    def _compared(self, attribute: str) -> bool:
        source, _, name = attribute[1:-1].partition("[")
        known = {"request": self._facts.request, "resource": self._facts.resource}[source.lower()]
        quantifier, _, operator = self._take().rpartition(":")
        wanted = [one.strip().strip("'").lower() for one in self._take().strip("{}").split(",")]
        found = known.get(name.rpartition(":")[2], "").lower()
        if not found:
            return False
        if operator in _EQUAL and quantifier in ("", _ANY):
            return found in wanted
        if operator in _UNEQUAL and quantifier in ("", _NONE):
            return found not in wanted
        raise ValueError(f"unknown operator {quantifier}:{operator}")

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        if not (token := self._peek()):
            raise ValueError("it ends too early")
        self._at += 1
        return token


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot be read at {text[at : at + 20]!r}")
        found.append(match[0].strip())
        at = match.end()
    return found

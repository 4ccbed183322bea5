"""Conditions of role assignments, in Azure's own language, limited to which role may be assigned to whom.

Supported: `ActionMatches{'…'}`, `@Request[…]` and `@Resource[…]` with the operators below, `AND`, `OR`, `!` and
brackets. A condition that cannot be parsed is never met: the twin does not allow what it does not understand.
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
class ConditionFacts:
    """What a condition can refer to: the action, the request, and existing resources. Names as in Azure:
    `RoleDefinitionId`, `PrincipalId`, `PrincipalType`."""

    action: str
    request: Mapping[str, str] = field(default_factory=dict)
    resource: Mapping[str, str] = field(default_factory=dict)


def holds(condition: str, facts: ConditionFacts) -> bool:
    try:
        return _ConditionReader(condition, facts).whole()
    except ValueError:
        return False


class _ConditionReader:
    """By recursive descent. Both sides of `AND` and `OR` are always parsed."""

    def __init__(self, text: str, facts: ConditionFacts) -> None:
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
            raise ValueError("unexpected end")
        self._at += 1
        return token


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"syntax error at {text[at : at + 20]!r}")
        found.append(match[0].strip())
        at = match.end()
    return found

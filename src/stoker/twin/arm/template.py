"""Expressions in deployment templates, such as `[concat(parameters('name'), 'Subnet')]`, and their evaluation."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.twin import ids
from stoker.twin.refusal import Refused

_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|-?\d+(?:\.\d+)?|[A-Za-z_][\w]*|[()\[\].,])")


@dataclass(frozen=True, slots=True)
class Scope:
    """What expressions can refer to. `reference` returns a resource by its id or name, as its own GET would."""

    parameters: Mapping[str, Any]
    variables: Mapping[str, Any]
    subscription: str
    tenant: str
    group: str
    region: str
    reference: Callable[[str], Mapping[str, Any]]


def evaluate(value: Any, scope: Scope) -> Any:
    """The value with every expression in it evaluated, at any depth."""
    if isinstance(value, Mapping):
        return {key: evaluate(one, scope) for key, one in value.items()}
    if isinstance(value, list):
        return [evaluate(one, scope) for one in value]
    if isinstance(value, str) and value.startswith("[["):
        return value[1:]
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return _Expression(value[1:-1], scope).value()
    return value


def _invalid(message: str) -> Refused:
    return Refused(400, "InvalidTemplate", f"Deployment template validation failed: '{message}'.")


class _Expression:
    def __init__(self, text: str, scope: Scope) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        self._at = 0
        self._scope = scope

    def value(self) -> Any:
        value = self._next()
        if self._at != len(self._tokens):
            raise _invalid(f"the expression '{self._text}' cannot be parsed")
        return value

    def _next(self) -> Any:
        token = self._take()
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.lstrip("-")[:1].isdigit():
            return float(token) if "." in token else int(token)
        if token.lower() in ("true", "false"):
            return token.lower() == "true"
        return self._members(self._call(token))

    def _call(self, name: str) -> Any:
        self._expect("(")
        arguments = []
        while self._peek() != ")":
            arguments.append(self._next())
            if self._peek() == ",":
                self._take()
        self._expect(")")
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            raise _invalid(f"the twin does not support the template function '{name}'")
        try:
            return function(self._scope, *arguments)
        except (KeyError, IndexError, TypeError) as error:
            raise _invalid(f"the expression '{self._text}' cannot be evaluated: {error}") from error

    def _members(self, value: Any) -> Any:
        while self._peek() in (".", "["):
            dotted = self._take() == "."
            key = self._take() if dotted else self._next()
            if not dotted:
                self._expect("]")
            value = _member(value, key)
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        if self._at >= len(self._tokens):
            raise _invalid(f"the expression '{self._text}' ends too early")
        self._at += 1
        return str(self._tokens[self._at - 1])

    def _expect(self, word: str) -> None:
        if self._take() != word:
            raise _invalid(f"the expression '{self._text}' lacks '{word}'")


def _member(value: Any, key: Any) -> Any:
    if isinstance(value, Mapping):
        for name, one in value.items():
            if str(name).lower() == str(key).lower():
                return one
    if isinstance(value, list) and isinstance(key, int):
        return value[key]
    raise _invalid(f"there is no property '{key}'")


def _resource_id(scope: Scope, *words: str) -> str:
    """`resourceId([subscription], [group], type, names…)`"""
    given = list(words)
    kind = next(index for index, word in enumerate(given) if "/" in word)
    group = given[kind - 1] if kind else scope.group
    return ids.resource_id(scope.subscription, group, given[kind], *given[kind + 1 :])


def _reference(scope: Scope, name: str, _version: str = "", part: str = "") -> Any:
    """Its properties; the whole resource where the third argument is `Full`."""
    found = scope.reference(name)
    return found if part.lower() == "full" else found.get("properties", {})


def _group(scope: Scope) -> dict[str, str]:
    return {"id": ids.group_id(scope.subscription, scope.group), "name": scope.group, "location": scope.region}


def _subscription(scope: Scope) -> dict[str, str]:
    id = f"/subscriptions/{scope.subscription}"
    return {"id": id, "subscriptionId": scope.subscription, "tenantId": scope.tenant}


def _subscription_id(scope: Scope, kind: str, *names: str) -> str:
    pairs = zip(kind.split("/")[1:], names, strict=False)
    path = "".join(f"/{word}/{name}" for word, name in pairs)
    return f"/subscriptions/{scope.subscription}/providers/{kind.split('/')[0]}{path}"


def _concat(_scope: Scope, *parts: Any) -> Any:
    return (
        [one for part in parts for one in part] if isinstance(parts[0], list) else "".join(str(part) for part in parts)
    )


def _format(_scope: Scope, text: str, *values: Any) -> str:
    return re.sub(r"\{(\d+)\}", lambda found: str(values[int(found[1])]), text)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "parameters": lambda scope, name: _member(scope.parameters, name),
    "variables": lambda scope, name: evaluate(_member(scope.variables, name), scope),
    "concat": _concat,
    "format": _format,
    "resourceid": _resource_id,
    "subscriptionresourceid": _subscription_id,
    "reference": lambda scope, name, *more: _reference(scope, name, *more),
    "resourcegroup": _group,
    "subscription": _subscription,
    "base64": lambda _, text: base64.b64encode(text.encode()).decode(),
    "uniquestring": lambda _, *parts: hashlib.sha256("".join(parts).encode()).hexdigest()[:13],
    "guid": lambda _, *parts: _guid("".join(parts)),
    "tolower": lambda _, text: text.lower(),
    "toupper": lambda _, text: text.upper(),
    "string": lambda _, value: str(value),
    "int": lambda _, value: int(value),
    "bool": lambda _, value: str(value).lower() == "true",
    "if": lambda _, test, then, other: then if test else other,
    "equals": lambda _, one, other: one == other,
    "not": lambda _, value: not value,
    "and": lambda _, *values: all(values),
    "or": lambda _, *values: any(values),
    "empty": lambda _, value: not value,
    "length": lambda _, value: len(value),
    "first": lambda _, value: value[0],
    "replace": lambda _, text, old, new: text.replace(old, new),
    "createarray": lambda _, *values: list(values),
    "json": lambda _, text: json.loads(text),
}


def _guid(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

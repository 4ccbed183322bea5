"""The fields that Azure knows, with their types: unknown ones are refused instead of ignored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stoker.twin.refusal import Refused, unreadable

FILE = Path(__file__).with_name("forms.json")  # written by `python -m stoker.twin.arm.readforms`


def check(kind: str, body: Mapping[str, Any]) -> None:
    """Refuses the first unknown field. Kinds without a known form are accepted unchecked."""
    told = _told()
    root = {name.lower(): form for name, form in told["kinds"].items()}.get(kind.lower())
    if root:
        _object(body, root, "")


@cache
def _told() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return told


def _object(value: Any, name: str, path: str) -> None:
    if not isinstance(value, Mapping):
        raise _wrong(value, name.partition(".")[2], path)
    form = {field.lower(): kind for field, kind in _told()["forms"][name].items()}
    for field, one in value.items():
        where = f"{path}.{field}" if path else str(field)
        if str(field).lower() not in form:
            raise unreadable(
                f"Could not find member '{field}' on object of type '{name.partition('.')[2]}'. Path '{where}'."
            )
        _value(one, form[str(field).lower()], where)


def _value(value: Any, kind: Any, path: str) -> None:
    match kind:
        case {"form": name}:
            _object(value, name, path)
        case {"list": inner}:
            if not isinstance(value, list):
                raise _wrong(value, "List", path)
            for index, one in enumerate(value):
                _value(one, inner, f"{path}[{index}]")
        case {"map": inner}:
            if not isinstance(value, Mapping):
                raise _wrong(value, "Dictionary", path)
            for key, one in value.items():
                _value(one, inner, f"{path}.{key}")
        case "boolean" if not isinstance(value, bool) and str(value).lower() not in ("true", "false"):
            raise _wrong(value, "System.Boolean", path)
        case "integer" if not _whole(value):
            raise _wrong(value, "System.Int32", path)
        case "number" if not _number(value):
            raise _wrong(value, "System.Double", path)
        case "string" if isinstance(value, Mapping | list):
            raise _wrong(value, "System.String", path)


def _whole(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, str) and value.lstrip("-").isdigit()
    )


def _number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, bool)


def _wrong(value: Any, wanted: str, path: str) -> Refused:
    return unreadable(f"Error converting value {json.dumps(value)[:80]} to type '{wanted}'. Path '{path}'.")

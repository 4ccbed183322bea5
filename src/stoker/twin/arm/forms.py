"""The fields that Azure knows, with their types; written from Azure's own SDKs by `python -m stoker.twin.arm.forms`."""

from __future__ import annotations

import importlib
import json
import sys
import types
import typing
from collections.abc import Mapping
from enum import EnumMeta
from functools import cache
from pathlib import Path
from typing import Any

from stoker.twin.refusal import Refused, unreadable

FILE = Path(__file__).with_name("forms.json")  # written by `python -m stoker.twin.arm.forms`


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


_MODELS = {
    "Microsoft.Compute/virtualMachines": ("azure.mgmt.compute", "VirtualMachine"),
    "Microsoft.Compute/virtualMachineScaleSets": ("azure.mgmt.compute", "VirtualMachineScaleSet"),
    "Microsoft.Compute/virtualMachines/extensions": ("azure.mgmt.compute", "VirtualMachineExtension"),
    "Microsoft.Compute/disks": ("azure.mgmt.compute", "Disk"),
    "Microsoft.Compute/proximityPlacementGroups": ("azure.mgmt.compute", "ProximityPlacementGroup"),
    "Microsoft.Network/virtualNetworks": ("azure.mgmt.network", "VirtualNetwork"),
    "Microsoft.Network/virtualNetworks/subnets": ("azure.mgmt.network", "Subnet"),
    "Microsoft.Network/networkSecurityGroups": ("azure.mgmt.network", "NetworkSecurityGroup"),
    "Microsoft.Network/networkSecurityGroups/securityRules": ("azure.mgmt.network", "SecurityRule"),
    "Microsoft.Network/publicIPAddresses": ("azure.mgmt.network", "PublicIPAddress"),
    "Microsoft.Network/networkInterfaces": ("azure.mgmt.network", "NetworkInterface"),
}
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean"}


def read() -> dict[str, Any]:
    forms: dict[str, Any] = {}
    roots = {}
    for kind, (package, name) in _MODELS.items():
        module = importlib.import_module(f"{package}.models._models")
        roots[kind] = _form(getattr(module, name), forms)
    packages = sorted({package for package, _ in _MODELS.values()})
    versions = {one: importlib.import_module(f"{one}._version").VERSION for one in packages}
    return {"read_from": versions, "kinds": roots, "forms": dict(sorted(forms.items()))}


def _form(model: Any, forms: dict[str, Any]) -> str:
    """The name of this model's form, which is added with all that it needs."""
    name = f"{model.__module__.split('.')[2]}.{model.__name__}"
    if name not in forms:
        forms[name] = {}
        module = sys.modules[model.__module__]
        known = {**vars(module), "_models": sys.modules[model.__module__.rsplit(".", 1)[0]]}
        hints: dict[str, Any] = {}
        for one in reversed(model.__mro__):
            hints |= typing.get_type_hints(one, known) if "__annotations__" in vars(one) else {}
        fields = [
            (one, field) for base in reversed(model.__mro__) for one, field in vars(base).items() if _is_field(field)
        ]
        forms[name] = {field._rest_name_input or one: _kind(hints.get(one, Any), forms) for one, field in fields}
    return name


def _is_field(value: Any) -> bool:
    return hasattr(value, "_rest_name_input")


def _kind(hint: Any, forms: dict[str, Any]) -> Any:
    origin, words = typing.get_origin(hint), [one for one in typing.get_args(hint) if one is not type(None)]
    if origin in (typing.Union, types.UnionType):
        plain = [one for one in words if not isinstance(one, EnumMeta)]
        return _kind(plain[0], forms) if len(plain) == 1 else "any"
    if origin is list:
        return {"list": _kind(words[0], forms)}
    if origin is dict:
        return {"map": _kind(words[1], forms)}
    if hint in _PLAIN:
        return _PLAIN[hint]
    return {"form": _form(hint, forms)} if isinstance(hint, type) and hasattr(hint, "_is_model") else "any"


def main(arguments: list[str]) -> int:
    place = Path(arguments[0]) if arguments else FILE
    place.write_text(json.dumps(read(), separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

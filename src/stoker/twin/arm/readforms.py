"""Rewrites the forms of bodies from the models of Azure's own SDKs: python -m stoker.twin.arm.readforms [FILE]

A form says what each field of an object may be. Only names and types: Azure changes the values of enums.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
import typing
from enum import EnumMeta
from pathlib import Path
from typing import Any

from stoker.twin.arm.forms import FILE

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

"""The values of a configuration file that a script names: YAML, TOML, INI or JSON."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath

from stoker.client.script.localcode import nodes

_MOST_BYTES = 500_000
_MOST_FILES = 5
_LONGEST = 200  # letters of a path
_ENDINGS = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".json")  # JSON last: scripts write it as well


def configuration(folder: Path, tree: ast.Module) -> object:
    """The first that exists, also by Hydra's names; None if there is none."""
    texts = {node.value for node in nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = sorted(text for text in texts if len(text) < _LONGEST and re.fullmatch(r"[\w./-]+", text))
    names = [text for ending in _ENDINGS for text in words if text.endswith(ending)]
    for node in nodes(tree):
        if isinstance(node, ast.keyword) and node.arg == "config_name" and isinstance(node.value, ast.Constant):
            places = [text for text in words if (folder / text).is_dir()]
            names += [f"{place}/{str(node.value.value).removesuffix('.yaml')}.yaml" for place in (*places, ".")]
    for name in names[:_MOST_FILES]:
        file = folder / name
        if PurePosixPath(name).is_absolute() or not file.is_file() or file.stat().st_size >= _MOST_BYTES:
            continue
        try:
            if (found := _read(file.read_bytes(), file.suffix)) is not None:
                return found
        except (ValueError, RecursionError):
            continue
    return None


def _read(data: bytes, ending: str) -> object:
    """Raises ValueError. The libraries are imported here because few scripts need one."""
    if ending == ".toml":
        import tomllib

        return tomllib.loads(data.decode())
    if ending == ".json":
        import json

        return json.loads(data)
    if ending in (".ini", ".cfg"):
        import configparser

        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(data.decode())
        except configparser.Error as error:
            raise ValueError(str(error)) from error
        return {name: dict(section) for name, section in parser.items()}
    import yaml

    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error

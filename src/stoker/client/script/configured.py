"""What a script is configured with besides its options: files, variables of the environment, and texts in those."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from stoker.client.script.flags import ScriptFlag, texts
from stoker.client.script.localcode import name_of, nodes

_MOST_BYTES = 500_000
_MOST_FILES = 5
_MOST_KEYS = 500
_LONGEST = 200  # letters of a path
_ENDINGS = (".yaml", ".yml", ".toml", ".ini", ".cfg", ".json")  # JSON last: scripts write it as well
_REFERENCE = re.compile(r"\$\{([\w.]+)\}|<([\w.]+)>")  # as OmegaConf and HyperPyYAML write it
_FOLDER_VARIABLE = re.compile(
    r"([A-Z0-9]+_)*(LOG|OUTPUT|OUT|SAVE|MODEL|CKPT|CHECKPOINT|RESULT|WORK|RUN|EXP|ARTIFACT)S?_?(DIR|PATH|FOLDER|ROOT)"
)


def configuration(folder: Path, tree: ast.Module) -> object:
    """The first file that exists and that the text names, also by Hydra's names; None if there is none."""
    texts = {node.value for node in nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = sorted(text for text in texts if len(text) < _LONGEST and re.fullmatch(r"[\w./-]+", text))
    names = [text for ending in _ENDINGS for text in words if text.endswith(ending)]
    for node in nodes(tree):
        if isinstance(node, ast.keyword) and node.arg == "config_name" and isinstance(node.value, ast.Constant):
            places = [text for text in words if (folder / text).is_dir()]
            names += [f"{place}/{str(node.value.value).removesuffix('.yaml')}.yaml" for place in (*places, ".")]
    return first_of(folder, names)


def first_of(folder: Path, names: list[str]) -> object:
    """What is in the first of these files that exists and can be parsed."""
    for name in [one for one in names if one.endswith(_ENDINGS)][:_MOST_FILES]:
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
    return _yaml(data)


def _yaml(data: bytes) -> object:
    """Tags that a library gives a meaning, as `!ref` or `!new:`, are ignored: what they are put on is read."""
    import yaml

    class Untagged(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # which of them is installed
        pass

    def plain(loader: yaml.SafeLoader, _tag: str, node: yaml.Node) -> object:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        return loader.construct_sequence(node) if isinstance(node, yaml.SequenceNode) else str(node.value)

    Untagged.add_multi_constructor("!", plain)
    try:
        return yaml.load(data, Loader=Untagged)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def flatten(config: object) -> dict[str, str]:
    """The texts of a configuration by their dotted keys, and by the last part of these. A text that refers to other
    keys has their values in it."""
    found = _flat(config, "")
    numbers = {name: str(value) for name, value in _numbers(config)}

    def referred(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return found.get(name) or numbers.get(name) or match[0]

    for _ in range(3):  # a reference may lead to another one
        found = {name: _REFERENCE.sub(referred, text)[:_LONGEST] for name, text in found.items()}
    return found


def _flat(config: object, prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if isinstance(config, Mapping):
        for key, value in list(config.items())[:_MOST_KEYS]:
            if isinstance(value, str):
                found.setdefault(str(key), value)
                found[f"{prefix}{key}"] = value
            elif prefix.count(".") < 5:
                found |= {name: text for name, text in _flat(value, f"{prefix}{key}.").items() if name not in found}
    return found


def _numbers(config: object) -> Iterator[tuple[str, object]]:
    """Of the first level."""
    for key, value in list(config.items())[:_MOST_KEYS] if isinstance(config, Mapping) else ():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield str(key), value


def unset_keys(config: object) -> dict[str, bool]:
    """Keys of the first level without a value, and whether they say no: `resume: false`."""
    every = list(config.items())[:_MOST_KEYS] if isinstance(config, Mapping) else ()
    return {str(key): value is False for key, value in every if value in (None, "") or value is False}


def folder_variable(node: ast.AST) -> str:
    """The variable of the environment that this reads and that names a folder to write to, if the script has no
    relative path for when it is not set; else empty."""
    name, default = "", None
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        name = _constant(node.slice) if getattr(node.value, "attr", "") == "environ" else ""
    elif isinstance(node, ast.Call) and node.args and "env" in ast.unparse(node.func):
        default = node.args[1] if len(node.args) > 1 else None
        name = _constant(node.args[0]) if name_of(node) in ("get", "getenv") else ""
    given = default is not None and not (_constant(default).startswith(("/", "~")) or _is_none(default))
    return name if _FOLDER_VARIABLE.fullmatch(name) and not given else ""


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def computed(trees: list[ast.Module]) -> list[ScriptFlag]:
    """Options that a loop declares: one for each key of a dictionary of defaults, or field of a dataclass."""
    every = [node for tree in trees for node in nodes(tree)]
    if not any(isinstance(node, ast.Call) and name_of(node) == "add_argument" and _is_made(node) for node in every):
        return []
    found: dict[str, ScriptFlag] = {}
    for node in every:
        for name, value in _defaults(node):
            boolean = isinstance(value, ast.Constant) and isinstance(value.value, bool)
            text = str(value.value) if isinstance(value, ast.Constant) and value.value is not None else None
            found.setdefault(name, ScriptFlag(f"--{name}", text, number=_is_number(value) and not boolean))
    return list(found.values())


def _is_made(call: ast.Call) -> bool:
    """`add_argument(f"--{name}", ...)`"""
    return bool(call.args) and isinstance(call.args[0], ast.JoinedStr | ast.BinOp) and "--" in ast.unparse(call.args[0])


def _is_number(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _defaults(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.Assign) and any("default" in getattr(one, "id", "").lower() for one in node.targets):
        if isinstance(node.value, ast.Call) and name_of(node.value) == "dict":
            yield from ((one.arg, one.value) for one in node.value.keywords if one.arg)
        elif isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                yield from ((name, value) for name in texts([key] if key else []))
    elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(mark) for mark in node.decorator_list):
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                yield one.target.id, one.value

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
RUN_DIR = "hydra.run.dir"
_MOST_DEFAULTS, _DEEPEST = 30, 3
_RESOLVER = re.compile(r"\$\{(oc\.env|hydra|now):([^{}]*)\}")
_OF_PROJECT = re.compile(r"(^|_)(ROOT|ROOT_DIR|PWD|PROJECT|PROJECT_DIR)$")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}|<([\w.]+)>")  # as OmegaConf and HyperPyYAML write it
_FOLDER_VARIABLE = re.compile(
    r"([A-Z0-9]+_)*(LOG|OUTPUT|OUT|SAVE|MODEL|CKPT|CHECKPOINT|RESULT|WORK|RUN|EXP|ARTIFACT)S?_?(DIR|PATH|FOLDER|ROOT)"
)

_PLACE_VARIABLE = re.compile(r"([A-Z0-9]+_)+(DIR|PATH|FOLDER|ROOT|HOME|BASE|CACHE)")
_OF_OTHERS = re.compile(
    r"HF|HUGGINGFACE|TRANSFORMERS|TORCH|XDG|CUDA|CONDA|SLURM|PYTHON|VIRTUAL|STOKER|LD|JAVA|WANDB|MLFLOW"
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
                return _composed(file.parent, found) if isinstance(found, dict) and "defaults" in found else found
        except (ValueError, RecursionError):
            continue
    return None


def _composed(folder: Path, config: dict[str, object], depth: int = 0) -> dict[str, object]:
    """With the files of Hydra's `defaults`, each of which is the part that its folder is called, unless it says that it
    is of all."""
    listed = config.get("defaults")
    whole: dict[str, object] = {}
    for entry in listed[:_MOST_DEFAULTS] if isinstance(listed, list) and depth < _DEEPEST else ():
        group, name = next(iter(entry.items()), ("", "")) if isinstance(entry, dict) else ("", entry)
        group = str(group).split()[-1].partition("@")[0] if group else ""  # `override /model@net`
        file = folder / group.lstrip("/") / f"{str(name).removesuffix('.yaml')}.yaml"
        if name in (None, "_self_") or not file.is_file() or file.stat().st_size >= _MOST_BYTES:
            continue
        data = file.read_bytes()
        found = _yaml(data)
        part = _composed(file.parent, found, depth + 1) if isinstance(found, dict) else {}
        for key in reversed(group.strip("/").split("/") if group and b"@package _global_" not in data else ()):
            part = {key: part}
        whole = _merged(whole, part)
    return _merged(whole, config)


def _merged(first: dict[str, object], second: dict[str, object]) -> dict[str, object]:
    merged = dict(first)
    for key, value in second.items():
        known = merged.get(key)
        merged[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


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

    for _ in range(4):  # a reference may lead to another one
        found = {name: _REFERENCE.sub(referred, _resolved(text))[:_LONGEST] for name, text in found.items()}
    return found


def _resolved(text: str) -> str:
    """With what Hydra and OmegaConf compute: moments, its own folder, variables of the environment."""

    def value(found: re.Match[str]) -> str:
        name, _, default = found[2].partition(",")
        if found[1] == "hydra" and name in ("run.dir", "runtime.output_dir"):
            return f"${{{RUN_DIR}}}"
        if found[1] == "hydra" and name == "runtime.cwd":
            return "."
        if found[1] == "oc.env":
            return default or ("." if _OF_PROJECT.search(name) else found[0])
        return "*"

    return _RESOLVER.sub(value, text)


def run_dir(known: Mapping[str, str], tree: ast.Module) -> tuple[str, bool]:
    """The folder that Hydra makes for each start, and whether the script is moved there: by default up to its version
    1.1, whose behaviour a script has that names no version."""
    versions = [
        getattr(keyword.value, "value", "")
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("hydra.main")
        for keyword in node.keywords
        if keyword.arg == "version_base"
    ]
    folder = known.get(RUN_DIR, "outputs/*/*")
    return folder, not versions or versions[0] in ("1.0", "1.1")


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
    name, default = _variable(node)
    given = default is not None and not (_constant(default).startswith(("/", "~")) or _is_none(default))
    return name if _FOLDER_VARIABLE.fullmatch(name) and not given else ""


def place_variables(trees: list[ast.Module]) -> list[str]:
    """The variables of the environment that may name a folder for everything, as `NANOCHAT_BASE_DIR`."""
    found = {_variable(node)[0]: None for tree in trees for node in nodes(tree)}
    return [name for name in found if _PLACE_VARIABLE.fullmatch(name) and not _OF_OTHERS.match(name)]


def _variable(node: ast.AST) -> tuple[str, ast.expr | None]:
    """The variable of the environment that this reads, and its value if it is not set."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return (_constant(node.slice) if getattr(node.value, "attr", "") == "environ" else ""), None
    if isinstance(node, ast.Call) and node.args and "env" in ast.unparse(node.func):
        default = node.args[1] if len(node.args) > 1 else None
        return (_constant(node.args[0]) if name_of(node) in ("get", "getenv") else ""), default
    return "", None


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

"""Where a script saves what it trains, and what it loads again: read from its text, for `stoker init`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from stoker.client.script.folding import UNKNOWN, Values
from stoker.client.script.localcode import name_of, nodes

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")  # that a library fills in, as in `model-{epoch:02d}.keras`
_CHECKPOINT = re.compile(r"(?i)ckpt|check_?point|(^|[/_.-])(last|latest|epoch|step|iter|snapshot|state|resume)")
_MODEL_FILE = re.compile(
    r"(?i)\.(pt|pth|tar|ckpt|h5|hdf5|keras|safetensors|bin|pkl|pickle|joblib|onnx|npz|npy|json|ubj|model|msgpack|db)(\.(gz|bz2|xz|zst))?$"
)
# The number of the argument that says where, or the keywords that do; -1 is the last one.
_SAVERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "save": (1, ("f", "path", "filepath", "checkpoint_id")),
    "dump": (1, ("filename", "file")),
    "savez": (0, ("file",)),
    "savez_compressed": (0, ("file",)),
    "save_model": (0, ("fname", "filepath", "path")),
    "save_weights": (0, ("filepath",)),
    "save_pretrained": (0, ("save_directory",)),
    "save_state": (0, ("output_dir",)),
    "save_file": (1, ("filename",)),
    "copyfile": (1, ("dst",)),
    "copy": (1, ("dst",)),
    "save_checkpoint": (0, ("filepath", "save_dir", "ckpt_dir")),
    "File": (0, ("name",)),  # of h5py
    "replace": (1, ("dst",)),
    "rename": (1, ("dst",)),
    "move": (1, ("dst",)),
}
_OF_NUMPY = ("np", "numpy", "jnp")  # whose `save` takes the path first
_OF_MODULES = ("replace", "rename", "move", "copy")  # of `os` and `shutil`: texts and dictionaries have them, too
# What these write is a model whatever it is called; without a suffix it is a folder.
_MODEL_SAVERS = ("save_model", "save_weights", "save_pretrained", "save_state", "save_checkpoint")
_CALLBACKS: dict[str, tuple[str, ...]] = {  # what saves again and again, and which argument says where
    "ModelCheckpoint": ("filepath", "dirpath"),
    "BackupAndRestore": ("backup_dir",),
    "TrainingCheckPoint": ("directory",),
    "CheckpointManager": ("directory",),
}
_ROOTS = {"TrainingArguments": "output_dir", "Seq2SeqTrainingArguments": "output_dir"}
_LOADERS = (
    "load",
    "load_model",
    "load_weights",
    "load_state",
    "from_pretrained",
    "get_last_checkpoint",
    "load_checkpoint",
)
_LOADERS_ALONE = ("exists", "isfile", "is_file", "isdir", "glob", "listdir", "iglob", "load_state_dict")


@dataclass(slots=True)
class Saving:
    """Paths and globs in the working directory."""

    checkpoints: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)  # saved, and not known to be loaded again
    loads: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)  # absolute paths that it saves to

    @property
    def resumes(self) -> bool:
        """It looks for its own checkpoint."""
        return any(_meet(saved, loaded) for saved in self.checkpoints for loaded in self.loads)


def saving(trees: Iterable[ast.AST], values: Values, imports: set[str]) -> Saving:
    found, saved = Saving(), list[tuple[str, bool]]()
    for node in (node for tree in trees for node in nodes(tree)):
        if isinstance(node, ast.Call):
            name = values.code.passes_to(node) or name_of(node)
            saved += [(path, surely) for path, surely in _saved(node, name, values, imports) if path]
            found.outside += [path for path in _outside(node, name, values) if path not in found.outside]
            if name in _LOADERS or name in _LOADERS_ALONE:
                found.loads += [
                    path for one in _places(node, name) for text in values.texts(one) if (path := _path(text))
                ]
    for path, surely in saved:
        again = any(_meet(path, loaded) for loaded in found.loads)
        if not surely and not again and not _is_named(path) and PurePosixPath(path).suffix != ".txt":
            continue  # a file that was moved, and is nothing that is trained
        target = found.checkpoints if surely or again or _CHECKPOINT.search(path) or UNKNOWN in path else found.models
        if path not in target:
            target.append(path)
    return found


def _saved(call: ast.Call, name: str, values: Values, imports: set[str]) -> Iterator[tuple[str, bool]]:
    """Where this call saves, and whether it does so again and again by its nature."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in _CALLBACKS:
        places = [given[key] for key in _CALLBACKS[name] if key in given] or call.args[:2]
        path = next((found for one in places if (found := _path(values.text(one)))), "")
        if path or not _is_lightning(imports):
            yield path, True
    elif name in _ROOTS and (place := given.get(_ROOTS[name], call.args[0] if call.args else None)) is not None:
        yield _folder(_path(values.text(place))), True
    elif name == "HfArgumentParser" and "TrainingArguments" in ast.unparse(call):
        yield _folder(_path(values.forced.get("output_dir"))), True
    elif name == "Trainer" and _is_lightning(imports):
        root = _path(values.text(given.get("default_root_dir"))) if "default_root_dir" in given else ""
        elsewhere = {"ModelCheckpoint", "save_checkpoint"} & _names_called(values)
        if not elsewhere:
            yield str(PurePosixPath(root or ".") / "lightning_logs") + "/", True
    elif name in ("create_study", "load_study", "RDBStorage"):
        text = values.text(given.get("storage", given.get("url", call.args[0] if call.args else None))) or ""
        if text.startswith("sqlite:///"):
            yield _path(text.removeprefix("sqlite:///")), True
    elif name in _SAVERS:
        yield from ((path, name == "save_state") for path in _written(call, name, given, values))
    elif name == "write_bytes" and isinstance(call.func, ast.Attribute):
        yield from ((path, False) for text in values.texts(call.func.value) if _is_named(path := _path(text)))


def _written(call: ast.Call, name: str, given: dict[str | None, ast.expr], values: Values) -> Iterator[str]:
    number, keys = _SAVERS[name]
    if name in _OF_MODULES and not (
        isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") in ("os", "shutil")
    ):
        if name not in ("rename", "replace") or len(call.args) != 1:
            return
        number = 0  # `path.rename(target)`: a text's `replace` takes two
    places = [given[key] for key in keys if key in given]
    owner = getattr(call.func.value, "id", "") if isinstance(call.func, ast.Attribute) else None
    if name == "save" and owner is not None and (len(call.args) == 1 or owner in _OF_NUMPY):
        number = 0  # `model.save(path)`
    mode = values.text(given.get("mode", call.args[1] if len(call.args) > 1 else None)) or "r"
    if name == "File" and mode.startswith("r"):
        return
    if not places and len(call.args) > number:
        places = [call.args[number]]
    for path in (_path(text) for place in places for text in values.texts(place)):
        folder = name in _MODEL_SAVERS and not PurePosixPath(path).suffix
        if path and (folder or name in (*_MODEL_SAVERS, *_OF_MODULES) or _is_named(path)):
            yield _folder(path) if folder else path


def _outside(call: ast.Call, name: str, values: Values) -> Iterator[str]:
    if name not in (*_CALLBACKS, "save", "dump", "save_model", "save_weights", "save_pretrained", "savez"):
        return
    for place in (*call.args[:2], *(one.value for one in call.keywords)):
        if isinstance(place, ast.Constant | ast.Name | ast.Attribute | ast.BinOp | ast.JoinedStr | ast.Call):
            yield from (text for text in values.texts(place) if text.startswith(("/", "~")) and "\n" not in text)


def _is_named(path: str) -> bool:
    """Whether its name is one of a model or a checkpoint; a folder was found to be one before."""
    return path.endswith("/") or bool(_MODEL_FILE.search(path) or _CHECKPOINT.search(PurePosixPath(path).name))


def _places(call: ast.Call, name: str) -> list[ast.expr]:
    own = [call.func.value] if isinstance(call.func, ast.Attribute) and name in _LOADERS_ALONE else []
    return [*call.args[:1], *own]


def _names_called(values: Values) -> set[str]:
    return {
        getattr(one.func, "id", getattr(one.func, "attr", ""))
        for every in values.names.values()
        for one in every
        if isinstance(one, ast.Call)
    }


def _is_lightning(imports: set[str]) -> bool:
    return bool({"lightning", "pytorch_lightning"} & imports)


def _folder(path: str) -> str:
    return f"{path.rstrip('/')}/" if path else ""


def _path(text: str | None) -> str:
    """As a path in the working directory; empty where it is none, or not known well enough to be named."""
    if not text or len(text) > 200 or "://" in text or "\n" in text:
        return ""
    folder = text.endswith("/")
    path = PurePosixPath(re.sub(r"\*+", UNKNOWN, _PLACEHOLDER.sub(UNKNOWN, text)))
    if path.is_absolute() or ".." in path.parts or not path.parts or not re.fullmatch(r"[\w. =*@+-]+", path.parts[0]):
        return ""
    if path.parts[0].strip("*. ") == "" or not all(part.isprintable() for part in path.parts):
        return ""
    return f"{path}/" if folder else str(path)


def _meet(one: str, other: str) -> bool:
    """Whether they can be the same, or one is in the other."""
    first, second = one.rstrip("/"), other.rstrip("/")
    if UNKNOWN in first or UNKNOWN in second:
        return first.partition(UNKNOWN)[0].rpartition("/")[0] == second.partition(UNKNOWN)[0].rpartition("/")[0]
    return first == second or first.startswith(f"{second}/") or second.startswith(f"{first}/")

"""Where a script saves its model, and what it loads again: parsed from its text, for `stoker init`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from stoker.client.script.folding import UNKNOWN, Values
from stoker.client.script.localcode import is_local, name_of, nodes

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")  # that a library fills in, as in `model-{epoch:02d}.keras`
_CHECKPOINT = re.compile(r"(?i)ckpt|check_?point|(^|[/_.-])(last|latest|epoch|step|iter|snapshot|state|resume)")
_MODEL_FILE = re.compile(
    r"(?i)\.(pt|pth|tar|ckpt|h5|hdf5|keras|safetensors|bin|pkl|pickle|joblib|onnx|npz|npy|json|ubj|model|msgpack|db|sav|cbm|eqx|zip"
    r"|pb|tflite|gguf|mat|dill|sqlite3?|pdparams|params|weights|txt(?=\.))(\.(gz|bz2|xz|zst))?$"
)
# The index of the argument with the path, or its keywords; -1 is the last one.
_SAVERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "save": (1, ("f", "path", "filepath", "checkpoint_id", "file_prefix")),
    "async_save": (1, ("checkpoint_id",)),
    "dump": (1, ("filename", "file")),
    "export": (2, ("f", "filepath", "fname")),  # of `torch.onnx`; a model's own takes the path first
    "savetxt": (0, ("fname",)),
    "tofile": (0, ("fid",)),
    "to_disk": (0, ("path",)),
    "tree_serialise_leaves": (0, ("path_or_file",)),
    "save_replay_buffer": (0, ("path",)),
    "save_word2vec_format": (0, ("fname",)),
    "savez": (0, ("file",)),
    "savez_compressed": (0, ("file",)),
    "save_model": (0, ("fname", "filepath", "path")),
    "save_weights": (0, ("filepath",)),
    "save_pretrained": (0, ("save_directory",)),
    "save_state": (0, ("output_dir",)),
    "save_file": (1, ("filename",)),
    "copyfile": (1, ("dst",)),
    "copy": (1, ("dst",)),
    "save_params": (0, ("f_params", "filename", "path")),  # of skorch
    "save_checkpoint": (0, ("filepath", "save_dir", "ckpt_dir")),
    "File": (0, ("name",)),  # of h5py
    "replace": (1, ("dst",)),
    "rename": (1, ("dst",)),
    "move": (1, ("dst",)),
}
_OF_NUMPY = ("np", "numpy", "jnp")  # whose `save` takes the path first
_OF_MODULES = ("replace", "rename", "move", "copy")  # of `os` and `shutil`: texts and dictionaries have them, too
_MOVERS = (*_OF_MODULES, "copyfile")
# These write a model whatever its name is; without a suffix it is a folder.
_MODEL_SAVERS = (
    "save_model",
    "save_params",
    "save_weights",
    "save_pretrained",
    "save_state",
    "save_checkpoint",
    "to_disk",
)
_FILE_SAVERS = ("savetxt", "tofile", "tree_serialise_leaves", "save_replay_buffer", "save_word2vec_format")
_PICKLES = ("pickle", "cPickle", "cloudpickle", "dill", "joblib")  # modules that write no settings or logs
_ENDINGS = {"save": ".zip", "save_replay_buffer": ".pkl"}  # that Stable-Baselines3 adds
_CATBOOSTS = ("CatBoost", "CatBoostClassifier", "CatBoostRegressor", "CatBoostRanker")
_REINFORCED = {"stable_baselines3", "sb3_contrib"}
_CALLBACKS: dict[str, tuple[str, ...]] = {  # callbacks that save repeatedly, and the argument with the path
    "ModelCheckpoint": ("filepath", "dirpath"),
    "BackupAndRestore": ("backup_dir",),
    "TrainingCheckPoint": ("directory",),
    "CheckpointManager": ("directory",),
    "CheckpointCallback": ("save_path",),
    "EvalCallback": ("best_model_save_path",),
    "DiskSaver": ("dirname",),
    "JournalFileStorage": ("file_path",),
    "JournalFileBackend": ("file_path",),
    "Checkpoint": ("dirname",),  # of skorch; others are told of what to save only
    "Memory": ("location",),  # of joblib, which computes nothing twice
}
# Of these, whatever it is called.
_FOLDERS = (
    "Checkpoint",
    "CheckpointCallback",
    "EvalCallback",
    "DiskSaver",
    "Memory",
    "BackupAndRestore",
    "CheckpointManager",
)
_ROOTS = {"output_dir": ("Arguments", "Config", "Trainer"), "work_dir": ("Runner",)}  # and how such classes are called
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
class SavedPaths:
    """Paths and globs in the working directory."""

    checkpoints: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)  # saved, and apparently not loaded again
    loads: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)  # absolute paths that it saves to

    @property
    def resumes(self) -> bool:
        """It looks for its own checkpoint."""
        return any(_meet(saved, loaded) for saved in self.checkpoints for loaded in self.loads)


def saving(trees: Iterable[ast.AST], values: Values, imports: set[str], depth: int = 0) -> SavedPaths:
    """`depth` says how many folders below the root the script runs: what it saves further up is not kept."""
    found, saved = SavedPaths(), list[tuple[str, bool, bool]]()
    elsewhere = moved_to(values)
    for node in (node for tree in trees for node in nodes(tree)):
        if isinstance(node, ast.Call):
            name = values.code.passes_to(node) or name_of(node)
            moved = name in _MOVERS
            saved += [
                (path, surely, moved or _is_doubtful(node, name, path))
                for path, surely in _saved(node, name, values, imports)
                if path
            ]
            found.outside += [path for path in _outside(node, name, values) if path not in found.outside]
            if name in _LOADERS or name in _LOADERS_ALONE:
                found.loads += [
                    path for one in _places(node, name) for text in values.texts(one) if (path := as_path(text))
                ]
    saved += [(path, True, False) for path in _instantiated(values.known)]
    parts = {path for path in map(as_path, _moved_from(values)) if path}  # written under another name first
    saved = [(below(elsewhere, path), surely, moved) for path, surely, moved in saved if path not in parts]
    found.loads = [below(elsewhere, path) for path in found.loads]
    above = [path for path, _, moved in saved if climbs(path) > depth and not moved]
    found.outside += [path for path in dict.fromkeys(above) if path not in found.outside]
    for path, surely, moved in saved:
        if climbs(path) > depth:
            continue
        again = any(_meet(path, loaded) for loaded in found.loads)
        if moved and not again and not _is_named(path) and PurePosixPath(path).suffix != ".txt":
            continue  # it is not a model
        target = found.checkpoints if surely or again or _CHECKPOINT.search(path) or UNKNOWN in path else found.models
        if path not in target:
            target.append(path)
    return found


def _is_doubtful(call: ast.Call, name: str, path: str) -> bool:
    """`thing.save("name")` may save anything."""
    return name == "save" and not _is_named(path) and getattr(getattr(call.func, "value", None), "id", "") != "torch"


def _instantiated(known: Mapping[str, str]) -> Iterator[str]:
    """Where the callbacks save that a configuration names as `_target_`."""
    for name, target in known.items():
        begin, whole, rest = name.rpartition("_target_")
        for key in _CALLBACKS.get(target.rpartition(".")[2], ()) if whole and not rest else ():
            if path := as_path(known.get(f"{begin}{key}")):
                yield _folder(path)


def moved_to(values: Values) -> str:
    """The folder that the script changes to, if it is one that is known."""
    if values.moved:
        return as_path(values.moved).rstrip("/")
    calls = values.code.called("chdir")
    texts = {as_path(values.text(call.args[0])) for call in calls if call.args}
    return texts.pop().rstrip("/") if len(texts) == 1 else ""


def below(folder: str, path: str) -> str:
    return path if not folder or path.startswith(f"{folder}/") else f"{folder}/{path}"


def _moved_from(values: Values) -> Iterator[str]:
    """What is given its name only when it is finished."""
    for name in ("replace", "rename", "move"):
        for call in values.code.called(name):
            owner = getattr(call.func.value, "id", "") if isinstance(call.func, ast.Attribute) else ""
            if owner in ("os", "shutil") and len(call.args) == 2:
                yield from values.texts(call.args[0])


def _saved(call: ast.Call, name: str, values: Values, imports: set[str]) -> Iterator[tuple[str, bool]]:
    """Where this call saves, and whether it saves repeatedly."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name in _CALLBACKS:
        places = [given[key] for key in _CALLBACKS[name] if key in given] or call.args[:2]
        path = next((found for one in places if (found := as_path(values.text(one)))), "")
        if path or not _is_lightning(imports):
            yield (_folder(path) if name in _FOLDERS else path), True
    elif place := _root(call, name, given):
        yield _folder(as_path(values.text(place))), True
    elif name in ("Accelerator", "ProjectConfiguration") and "project_dir" in given:
        if "automatic_checkpoint_naming" in given or any(not one.args for one in values.code.called("save_state")):
            yield _folder(as_path(values.text(given["project_dir"]))), True
    elif name == "open" and isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "shelve":
        for path in (as_path(text) for place in call.args[:1] for text in values.texts(place)):
            yield path, True
            yield path and f"{path}.*", True  # which file it is depends on the database that Python was built with
    elif name == "train" and "ultralytics" in imports and {"data", "epochs"} & set(given):
        yield _folder(as_path(values.text(given["project"])) if "project" in given else "runs"), True
    elif "save_snapshot" in given and "catboost" in imports:
        yield _folder(_snapshots(call, values)), True
    elif name == "SaveModelCallback" and "fastai" in imports:
        yield "models/", True
    elif name == "HfArgumentParser" and "TrainingArguments" in ast.unparse(call):
        yield _folder(as_path(values.forced.get("output_dir"))), True
    elif name == "Trainer" and _is_lightning(imports):
        root = as_path(values.text(given.get("default_root_dir"))) if "default_root_dir" in given else ""
        elsewhere = {"ModelCheckpoint", "save_checkpoint"} & _names_called(values)
        if not elsewhere:
            yield str(PurePosixPath(root or ".") / "lightning_logs") + "/", True
    elif name in ("create_study", "load_study", "RDBStorage"):
        text = values.text(given.get("storage", given.get("url", call.args[0] if call.args else None))) or ""
        if text.startswith("sqlite:///"):
            yield as_path(text.removeprefix("sqlite:///")), True
    elif name == "export" and "export" in values.code.functions:
        return  # what is in it saves, wherever that is
    elif name in _SAVERS:
        yield from ((path, name == "save_state") for path in _written(call, name, given, values, imports))
    elif name == "write" and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        opened = call.func.value
        mode = values.text(opened.args[1]) if len(opened.args) > 1 else None
        if name_of(opened) == "open" and "wb" in (mode or ""):
            yield from ((path, False) for text in values.texts(opened.args[0]) if _is_named(path := as_path(text)))
    elif name == "write_bytes" and isinstance(call.func, ast.Attribute):
        yield from ((path, False) for text in values.texts(call.func.value) if _is_named(path := as_path(text)))


def _snapshots(call: ast.Call, values: Values) -> str:
    """Of CatBoost: `save_snapshot` is an argument of the model or of its `fit`, the folder one of the model only."""
    models = (one for name in _CATBOOSTS for one in values.code.called(name))
    folders = (k.value for one in (call, *models) for k in one.keywords if k.arg == "train_dir")
    return next((path for place in folders if (path := as_path(values.text(place)))), "catboost_info")


def _root(call: ast.Call, name: str, given: dict[str | None, ast.expr]) -> ast.expr | None:
    """The argument that names the folder for all that a trainer writes."""
    for key, ends in _ROOTS.items():
        if name.endswith(ends) and name != "HfArgumentParser":
            first = call.args[0] if call.args and name.endswith("TrainingArguments") else None
            return given.get(key, first)
    return None


def _written(
    call: ast.Call, name: str, given: dict[str | None, ast.expr], values: Values, imports: set[str]
) -> Iterator[str]:
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
    if name == "save_model" and len(call.args) > 1 and values.text(call.args[1]):
        number = 1  # `save_model(model, path)`, of safetensors and Keras
    if name == "export" and len(call.args) < 3:
        number = 0  # `model.export(path)`
    if name == "save" and len(call.args) > 1 and _names_model(values.text(call.args[0])):
        number = 0  # `fabric.save(path, state)`
    mode = values.text(given.get("mode", call.args[1] if len(call.args) > 1 else None)) or "r"
    if name == "File" and mode.startswith("r"):
        return
    if not places and len(call.args) > number:
        places = [call.args[number]]
    whatever = name in (*_MODEL_SAVERS, *_FILE_SAVERS, *_OF_MODULES) or (name == "dump" and owner in _PICKLES)
    whatever = whatever or (name == "save" and owner is not None)
    own = name == "save" and is_local(call) and "save" in values.code.functions  # what is in it saves
    parted = "checkpoint_id" in given  # a folder with a file for each rank
    for path in (as_path(text) for place in places for text in values.texts(place)):
        path = "" if own and not _names_model(path) else _ended(path, name, imports)
        folder = (name in _MODEL_SAVERS or (parted and "/" not in path)) and not PurePosixPath(path).suffix
        if path and (folder or whatever or _is_named(path)):
            yield _folder(path) if folder else path


def _names_model(text: str | None) -> bool:
    return bool(text and _MODEL_FILE.search(text))


def _ended(path: str, name: str, imports: set[str]) -> str:
    """With the ending and the folder that a library adds."""
    if not path or PurePosixPath(path).suffix:
        return path
    if _REINFORCED & imports and name in _ENDINGS:
        return path + _ENDINGS[name]
    return f"models/{path}.pth" if name == "save" and "fastai" in imports else path


def _outside(call: ast.Call, name: str, values: Values) -> Iterator[str]:
    if name not in (*_CALLBACKS, "save", "dump", "save_model", "save_weights", "save_pretrained", "savez"):
        return
    for place in (*call.args[:2], *(one.value for one in call.keywords)):
        if isinstance(place, ast.Constant | ast.Name | ast.Attribute | ast.BinOp | ast.JoinedStr | ast.Call):
            yield from (text for text in values.texts(place) if text.startswith(("/", "~")) and "\n" not in text)


def _is_named(path: str) -> bool:
    """Whether its name is that of a model or a checkpoint; a folder was identified before."""
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


def as_path(text: str | None) -> str:
    """As a path in the working directory; empty if it is not one, or not known well enough."""
    if not text or len(text) > 200 or "://" in text or "\n" in text:
        return ""
    folder = text.endswith("/")
    path = PurePosixPath(re.sub(r"\*+", UNKNOWN, _PLACEHOLDER.sub(UNKNOWN, text)))
    inner = path.parts[climbs(str(path)) :]
    if path.is_absolute() or ".." in inner or not inner or not re.fullmatch(r"[\w. =*@+-]+", inner[0]):
        return ""
    if inner[0].strip("*. ") == "" or not all(part.isprintable() for part in inner):
        return ""
    return f"{path}/" if folder else str(path)


def climbs(path: str) -> int:
    """How many folders it goes up before it goes anywhere."""
    parts = PurePosixPath(path).parts
    return next((number for number, part in enumerate(parts) if part != ".."), len(parts))


def _meet(one: str, other: str) -> bool:
    """Whether they may be the same, or one is in the other."""
    first, second = one.rstrip("/"), other.rstrip("/")
    if UNKNOWN in first or UNKNOWN in second:
        return first.partition(UNKNOWN)[0].rpartition("/")[0] == second.partition(UNKNOWN)[0].rpartition("/")[0]
    return first == second or first.startswith(f"{second}/") or second.startswith(f"{first}/")

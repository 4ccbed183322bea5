"""What a training script says of itself: its flags, the folders it writes to, the libraries it uses.

It is parsed and never run, so that looking at somebody's code is harmless.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

_MOST_BYTES = 500_000
_MOST_FILES = 40
_LIKELY = ("train.py", "main.py", "run.py", "finetune.py", "fine_tune.py", "fit.py", "run_training.py")
FRAMEWORKS = (
    "torch",
    "tensorflow",
    "keras",
    "jax",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "sklearn",
    "xgboost",
)
_WRITERS = {"save", "savez", "dump", "save_pretrained", "save_model", "save_weights", "ModelCheckpoint", "makedirs"}
_WRITERS |= {"mkdir", "to_csv", "savefig", "SummaryWriter", "CSVLogger", "TensorBoard", "write_text", "write_bytes"}
_KEYWORDS = {"output_dir", "default_root_dir", "save_dir", "dirpath", "log_dir", "logging_dir", "checkpoint_dir"}
_FOLDER_NAME = re.compile(r"(?i)(.*_)?(out|output|outputs|save|result|results|model|models|checkpoint|ckpt|log)s?_dir")
_SECRET = re.compile(r"[A-Z][A-Z0-9_]*(TOKEN|API_KEY|SECRET|PASSWORD)")


@dataclass(frozen=True, slots=True)
class Flag:
    """An option the script takes on its command line."""

    name: str  # with its dashes
    default: str | None = None
    required: bool = False


@dataclass(slots=True)
class Script:
    """What was found; `path` is relative to the folder. Lists are in the order of the text."""

    path: str
    flags: list[Flag] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)  # folders, relative
    loose: list[str] = field(default_factory=list)  # files written beside the script
    imports: set[str] = field(default_factory=set)
    secrets: list[str] = field(default_factory=list)
    is_program: bool = False  # it has an `if __name__ == "__main__"`

    @property
    def frameworks(self) -> list[str]:
        return [name for name in FRAMEWORKS if name in self.imports]

    @property
    def distributed(self) -> bool:
        return "torch.distributed" in self.imports


def find(folder: Path) -> Script | None:
    """The script that most probably is the training, or None where no Python file lies in the folder."""
    try:
        paths = sorted(path for path in folder.glob("*.py") if path.is_file() and path.name.isprintable())[:_MOST_FILES]
    except OSError:
        return None
    scripts = [found for path in paths if (found := look(path, path.name))]
    return min(scripts, key=_unlikelihood, default=None)


def look(path: Path, name: str) -> Script | None:
    """None where the file is no Python that can be parsed."""
    try:
        with path.open("rb") as file:
            tree = ast.parse(file.read(_MOST_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    script = Script(name)
    for node in ast.walk(tree):
        _note(script, node)
    return script


def _unlikelihood(script: Script) -> tuple[bool, int, bool, bool, str]:
    name = script.path
    known = _LIKELY.index(name) if name in _LIKELY else len(_LIKELY)
    helper = name.startswith(("test_", "setup", "conftest", "_"))
    return helper, known, "train" not in name, not (script.is_program or script.frameworks), name


def _note(script: Script, node: ast.AST) -> None:
    match node:
        case ast.Import(names=names):
            for alias in names:
                _note_import(script, alias.name)
        case ast.ImportFrom(module=str(module), names=names):
            _note_import(script, module)
            script.imports.update(f"{module}.{alias.name}" for alias in names)
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            script.is_program = True
        case ast.Call():
            _note_call(script, node)
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(path))) if _FOLDER_NAME.fullmatch(
            name
        ):
            _note_written(script, path, is_folder=True)
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            _note_variable(script, name)


def _note_import(script: Script, module: str) -> None:
    parts = module.split(".")
    script.imports.update(".".join(parts[: end + 1]) for end in range(len(parts)))


def _note_call(script: Script, call: ast.Call) -> None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("add_argument", "option"):
        script.flags += _flags(call)
    elif name in ("getenv", "get") and "environ" in ast.unparse(call.func) + name:
        for word in _texts(call.args[:1]):
            _note_variable(script, word)
    elif name in _WRITERS:
        target = [call.func.value] if isinstance(call.func, ast.Attribute) and name in ("mkdir", "write_text") else []
        for path in _texts([*call.args, *_inside_path(target)]):
            _note_written(script, path, is_folder=name in ("makedirs", "mkdir", "SummaryWriter", "save_pretrained"))
    for keyword in call.keywords:
        if keyword.arg in _KEYWORDS:
            for path in _texts([keyword.value]):
                _note_written(script, path, is_folder=True)


def _flags(call: ast.Call) -> Iterator[Flag]:
    names = [text for text in _texts(call.args) if text.startswith("--")]
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    default, required = given.get("default"), given.get("required")
    if names:
        yield Flag(
            names[0],
            str(default.value) if isinstance(default, ast.Constant) and default.value is not None else None,
            isinstance(required, ast.Constant) and required.value is True,
        )


def _inside_path(nodes: list[ast.expr]) -> Iterator[ast.expr]:
    """The text in `Path("x")`."""
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Path":
            yield from node.args


def _texts(nodes: list[ast.expr]) -> list[str]:
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _note_written(script: Script, text: str, *, is_folder: bool) -> None:
    path = PurePosixPath(text)
    top = path.parts[0] if path.parts else ""
    if len(text) > 200 or not re.fullmatch(r"\w[\w.-]*", top):
        return
    if len(path.parts) > 1 or is_folder or text.endswith("/"):
        if top not in script.writes:
            script.writes.append(top)
    elif path.suffix and top not in script.loose:
        script.loose.append(top)


def _note_variable(script: Script, name: str) -> None:
    if _SECRET.fullmatch(name) and name not in script.secrets:
        script.secrets.append(name)

"""The facts of a training script: its flags, the folders it writes to, what it saves, the libraries it uses.

It is parsed and never run, so that analysing unknown code is safe.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from stoker.client.script.configured import (
    computed,
    configuration,
    first_of,
    flatten,
    folder_variable,
    run_dir,
    unset_keys,
)
from stoker.client.script.flags import (
    ScriptFlag,
    Subcommand,
    declared,
    decorated,
    marked,
    of_dataclasses,
    of_docstring,
    of_functions,
    subcommand,
    texts,
)
from stoker.client.script.folding import Values, gather, place_file
from stoker.client.script.localcode import modules, nodes
from stoker.client.script.saving import SavedPaths, climbs, saving
from stoker.model.job.commandline import NOTEBOOK

_MOST_BYTES = 500_000
_MOST_NOTEBOOK_BYTES = 20_000_000  # most of it are pictures
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
    "lightgbm",
    "optuna",
)
_WRITERS = {"save", "savez", "dump", "save_pretrained", "save_model", "save_weights", "ModelCheckpoint", "makedirs"}
_WRITERS |= {"mkdir", "to_csv", "savefig", "SummaryWriter", "CSVLogger", "TensorBoard", "write_text", "write_bytes"}
_KEYWORDS = {"output_dir", "default_root_dir", "save_dir", "dirpath", "log_dir", "logging_dir", "checkpoint_dir"}
_FOLDER_NAME = re.compile(r"(?i)(.*_)?(out|output|outputs|save|result|results|model|models|checkpoint|ckpt|log)s?_dir")
_EXPERIMENTS = re.compile(r"(?i)(exp|experiments?|results?|outputs?|save|work)_(root|path|dir|folder)")
_SECRET = re.compile(r"[A-Z][A-Z0-9_]*(TOKEN|API_KEY|SECRET|PASSWORD)")
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
_TRAINS = ("backward", "fit", "partial_fit", "train_on_batch", "value_and_grad", "boost", "optimize", "zero_grad")
_TRAINERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "GradientTape")


@dataclass(slots=True)
class Script:
    """What was found; `path` is relative to the folder. Lists are in the order of the text."""

    path: str
    flags: list[ScriptFlag] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)  # folders, relative
    imports: set[str] = field(default_factory=set)
    secrets: list[str] = field(default_factory=list)
    is_program: bool = False  # it has an `if __name__ == "__main__"`
    acts: bool = False  # it does something when it is run, even without that
    trains: bool = False  # it calls functions that train a model
    inside: bool = False  # it imports from its own package, and so has to be run with `-m`
    settings: dict[str, str] = field(
        default_factory=dict
    )  # module variables, which nanoGPT and others let users override
    takes_settings: bool = False  # `--name=value` sets one of those
    unset_settings: dict[str, bool] = field(default_factory=dict)  # keys of its configuration without a value
    takes_pairs: bool = False  # `key=value` on its command line sets one of those
    folder_variables: list[str] = field(default_factory=list)  # of the environment, which name where it writes
    from_root: bool = False  # it imports from the root, but is in a folder: `python -m` finds what it imports
    arguments: int = 0  # that it reads from `sys.argv` and cannot do without
    ranks_read: bool = False  # it reads RANK and similar variables, or starts a process group with them
    ranks_asked: bool = False  # it checks first whether they are set, or sets them itself
    subcommand: Subcommand | None = None  # required on the command line to train
    owners: dict[ast.Call, ast.FunctionDef] = field(default_factory=dict)  # whose options decorators declare
    runs_in: str = ""  # the folder below the root that is its working directory
    tree: ast.Module | None = None
    modules: dict[Path, ast.Module] = field(default_factory=dict)  # of the same folder, once they are followed
    values: Values = field(default_factory=Values)

    @property
    def frameworks(self) -> list[str]:
        return [name for name in FRAMEWORKS if name in self.imports]

    @property
    def distributed(self) -> bool:
        return "torch.distributed" in self.imports

    @property
    def needs_ranks(self) -> bool:
        """Started alone it would fail: it requires a launcher that sets its rank."""
        return self.ranks_read and not self.ranks_asked

    @property
    def depth(self) -> int:
        """How many folders below the root it runs."""
        return len(PurePosixPath(self.runs_in).parts)

    def configure(self, folder: Path, words: tuple[str, ...]) -> None:
        """With the configuration file that its command line names."""
        config = first_of(folder, [one.partition("=")[2] if one.startswith("-") else one for one in words])
        self.values.known |= {name: text for name, text in flatten(config).items() if name not in self.values.known}
        self.unset_settings |= unset_keys(config)

    def run_in(self, folder: str, root: Path) -> None:
        """From here on, paths are meant from this folder, which is below the root."""
        self.runs_in = folder
        for path, tree in ((root / self.path, self.tree), *self.modules.items()):
            if tree:
                place_file(self.values, tree, os.path.relpath(path, root / folder))

    def saving(self, given: dict[str, str]) -> SavedPaths:
        """What it saves where, once these flags are given."""
        self.values.forced = given
        if self.tree is None:
            return SavedPaths()
        return saving([self.tree, *self.modules.values()], self.values, self.imports, self.depth)

    def follow(self, folder: Path) -> None:
        """Parses the modules that it imports from the folder: they may save, and may use its flags."""
        if self.tree is None or self.modules:
            return
        self.modules = modules(folder / self.path, folder, self.tree)
        own = (folder / self.path).parent
        other = [path for path in self.modules if not path.is_relative_to(own)]
        self.from_root = len(other) == len(self.modules) > 0 and not _finds_by_itself(self.tree)
        self.from_root = (
            self.from_root and own != folder and all(not one.is_relative_to(folder / "src") for one in other)
        )
        known, moved = self.values.known, self.values.moved
        self.values = gather(self.tree, *self.modules.values())
        self.values.moved = moved
        for path, tree in ((folder / self.path, self.tree), *self.modules.items()):
            place_file(self.values, tree, path.relative_to(folder).as_posix() if path.is_relative_to(folder) else "")
        inside = Script(self.path, values=self.values)
        for module in self.modules.values():
            for node in nodes(module):
                _note(inside, node)
            config = flatten(configuration(folder, module))
            known |= {name: text for name, text in config.items() if name not in known}
        self.flags = self.flags or inside.flags or computed([self.tree, *self.modules.values()])
        self.folder_variables += [one for one in inside.folder_variables if one not in self.folder_variables]
        self.takes_pairs = self.takes_pairs or inside.takes_pairs
        self.writes += [one for one in inside.writes if one not in self.writes]
        self.ranks_read, self.ranks_asked = self.ranks_read or inside.ranks_read, self.ranks_asked or inside.ranks_asked
        self.secrets += [one for one in inside.secrets if one not in self.secrets]
        self.values.known = _defaults(self.flags) | known


def look(path: Path, name: str) -> Script | None:
    """None if the file is not valid Python or a Python notebook."""
    try:
        tree = ast.parse(_source(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    own = PurePosixPath(name).parent.as_posix() if name.endswith(NOTEBOOK) else "."  # notebooks run in their own
    script = Script(name, tree=tree, values=gather(tree), runs_in="" if own == "." else own)
    place_file(script.values, tree, name)
    script.imports = _imports(tree)
    script.subcommand, script.owners = subcommand(tree, script.imports), decorated(tree)
    for node in nodes(tree):
        _note(script, node)
    script.acts = script.is_program or any(_does(node) for node in tree.body)
    script.settings = {
        name: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if (name := getattr(target, "id", ""))
    }
    needed = {name for node in nodes(tree) for name in marked(node)}
    script.flags = [replace(one, required=True) if one.dest in needed else one for one in script.flags]
    script.arguments = 0 if script.flags else _arguments(tree)
    chosen = script.subcommand.function if script.subcommand else None
    script.flags += of_docstring(tree) if "docopt" in script.imports else []
    script.flags += [*of_functions(tree, script.imports, chosen), *of_dataclasses(tree, script.imports)]
    if "transformers.HfArgumentParser" in script.imports and any(
        getattr(one, "attr", "") == "do_train" for one in nodes(tree)
    ):
        script.flags.append(ScriptFlag("--do_train", switch=True))  # a field of its `TrainingArguments`
    root = path.parents[len(PurePosixPath(name).parts) - 1]
    config = configuration(path.parent, tree) or configuration(root, tree)
    script.values.known |= flatten(config)
    script.unset_settings = unset_keys(config)
    script.values.known |= _defaults(script.flags)
    if "hydra" in script.imports:
        made, moved = run_dir(script.values.known, tree)
        script.values.moved = made if moved else ""
        _note_written(script, made, is_folder=True)
    return script


def _imports(tree: ast.Module) -> set[str]:
    return {
        name.partition(".")[0]
        for node in nodes(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }


def _source(path: Path) -> bytes | str:
    is_notebook = path.suffix == NOTEBOOK
    with path.open("rb") as file:
        data = file.read(_MOST_NOTEBOOK_BYTES if is_notebook else _MOST_BYTES)
    if not is_notebook:
        return data
    from stoker.notebooks.document import code_of  # only notebooks need it

    return code_of(data)


def _defaults(flags: Iterable[ScriptFlag]) -> dict[str, str]:
    return {flag.dest: flag.default for flag in flags if flag.default and flag.default not in ("True", "False")}


def _does(node: ast.stmt) -> bool:
    """A top-level statement that is not a definition, and more than a setting."""
    if isinstance(node, ast.For | ast.While | ast.With | ast.Try):
        return any(isinstance(one, ast.Call) for one in ast.walk(node))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return True
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and "fit" in ast.unparse(node.value.func)


def _finds_by_itself(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.path" for node in nodes(tree))


def _arguments(tree: ast.Module) -> int:
    """The last of `sys.argv` that is read without a look at how many there are, or as many as that look requires."""
    read = [node for node in nodes(tree) if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.argv"]
    numbers = [node.slice.value for node in read if isinstance(node.slice, ast.Constant)]
    needed = max((number for number in numbers if isinstance(number, int)), default=0)
    looks = [node for node in nodes(tree) if isinstance(node, ast.Compare) and "len(sys.argv)" in ast.unparse(node)]
    if any(isinstance(one.ops[0], ast.NotEq | ast.Lt) and isinstance(one.left, ast.Call) for one in looks):
        return needed  # it gives up otherwise
    counted = any(isinstance(node, ast.Call) and ast.unparse(node) == "len(sys.argv)" for node in nodes(tree))
    return 0 if counted else needed


def _note(script: Script, node: ast.AST) -> None:
    if (name := folder_variable(node)) and name not in script.folder_variables:
        script.folder_variables.append(name)
    match node:
        case ast.Import(names=names):
            for alias in names:
                _note_import(script, alias.name)
        case ast.ImportFrom(module=module, names=names, level=level):
            script.inside = script.inside or level > 0
            if module and not level:
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
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value) if _EXPERIMENTS.fullmatch(name):
            _note_written(script, script.values.text(value) or "", is_folder=True)
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)), ctx=context):
            _note_variable(script, name)
            if name in _RANKS:
                script.ranks_read = script.ranks_read or isinstance(context, ast.Load)
                script.ranks_asked = script.ranks_asked or isinstance(context, ast.Store)
        case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()]) if name in _RANKS:
            script.ranks_asked = True


def _note_import(script: Script, module: str) -> None:
    parts = module.split(".")
    script.imports.update(".".join(parts[: end + 1]) for end in range(len(parts)))


def _note_call(script: Script, call: ast.Call) -> None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    script.trains = script.trains or name in _TRAINERS or (name in _TRAINS and isinstance(call.func, ast.Attribute))
    if name in ("add_argument", "option", "argument") or name.startswith("DEFINE_"):
        if script.subcommand is None or script.subcommand.has(call, script.owners):
            script.flags += declared(call, script.values)
    elif name == "HfArgumentParser" and "TrainingArguments" in ast.unparse(call):
        script.flags.append(ScriptFlag("--output_dir", None, required=True))
    elif name in ("exec", "ConfigStore", "apply_overrides") or "configurator" in name:
        script.takes_settings = True
    elif name in ("from_cli", "from_dotlist") or (name in ("split", "partition") and texts(call.args[:1]) == ["="]):
        script.takes_pairs = True
    elif name in ("getenv", "get") and "environ" in ast.unparse(call.func) + name:
        for word in texts(call.args[:1]):
            _note_variable(script, word)
            script.ranks_asked = script.ranks_asked or word in _RANKS
    elif name == "init_process_group":
        script.ranks_read = script.ranks_read or not {"rank", "init_method", "store"} & {
            one.arg for one in call.keywords
        }
    elif name in ("spawn", "is_torchelastic_launched"):
        script.ranks_asked = True
    elif name in _WRITERS:
        target = [call.func.value] if isinstance(call.func, ast.Attribute) and name in ("mkdir", "write_text") else []
        folded = [script.values.text(one) or "" for one in (*call.args, *target)]
        for path in folded:
            _note_written(script, path, is_folder=name in ("makedirs", "mkdir", "SummaryWriter", "save_pretrained"))
    for keyword in call.keywords:
        if keyword.arg in _KEYWORDS:
            _note_written(script, script.values.text(keyword.value) or "", is_folder=True)


def _note_written(script: Script, text: str, *, is_folder: bool) -> None:
    path, up = PurePosixPath(text), climbs(text)
    if up > script.depth:
        return
    top = "/".join(path.parts[: up + 1])
    if len(text) > 200 or not re.fullmatch(r"(\.\./)*\w[\w.-]*", top):
        return
    if (len(path.parts) > up + 1 or is_folder or text.endswith("/")) and top not in script.writes:
        script.writes.append(top)


def _note_variable(script: Script, name: str) -> None:
    if _SECRET.fullmatch(name) and name not in script.secrets:
        script.secrets.append(name)

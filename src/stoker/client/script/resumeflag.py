"""Finds the arguments that make a script resume, by the names of its flags and by what it does with them; and the
folders in which it refuses to start where it has been."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from stoker.client.script.flags import ScriptFlag, texts
from stoker.client.script.folding import UNKNOWN, Values
from stoker.client.script.localcode import name_of, nodes
from stoker.client.script.saving import as_path, below, moved_to
from stoker.client.script.script import Script

_NEWEST, _NUMBER = "${checkpoint.newest}", "${checkpoint.number}"
_SAYS_SO = re.compile(
    r"(auto[_-]?)?(resume|restore|continue)"
    r"([_-]?(from|path|checkpoint|ckpt|file|training|train|model|weights|run|state|dir|last|latest|if|possible))*"
)
# May also be where to save, or an initial model: what the script does with it decides.
_MAY_MEAN_IT = re.compile(
    r"(load|ckpt|checkpoint|last[_-]?(ckpt|checkpoint)|(model[_-])?(ckpt|checkpoint)[_-](path|file|to[_-]load)"
    r"|load[_-](checkpoint|ckpt|model|state|from|path|file|dir|checkpoint[_-]path|from[_-]checkpoint)"
    r"|(from|start)[_-](checkpoint|ckpt)|(start|train)[_-]from|restart([_-]?(from|path|file|checkpoint|ckpt))*)"
)
_WEIGHTS = re.compile(r"(load[_-])?(weights|pretrained|model[_-]path|init(ial)?([_-](checkpoint|ckpt|weights|model))?)")
_NOT = re.compile(r"(no|dont|skip)[_-].*|.*[_-](opt|optimizer|only|freq|every|interval|steps|epoch)")
_BY_NUMBER = re.compile(
    r"(resume|restore|continue|load)[_-]?((from|at)[_-]?)?(it|iters?|iterations?|steps?|epochs?)(num)?"
)
_BEGINS = re.compile(
    r"((start|begin|initial|init|first|last|from|current|cur|resume)[_-]?)?(epochs?|iters?|iterations?|steps?)"
    r"([_-]?(count|start|begin|num))?"
)
_PROGRESS = re.compile(
    r"(?i)(last_|start_|cur(rent)?_|num_)?(epochs?(_run)?|steps?|global_step|iter(ation)?(_num)?s?|optimi[sz]er)"
)
_SAVERS = ("save", "dump", "save_checkpoint", "save_model", "save_weights", "save_pretrained", "save_state", "savez")
_LOADERS = ("load", "load_model", "load_weights", "load_checkpoint", "load_state", "load_state_dict", "from_pretrained")
_OVERWRITES = re.compile(r"(allow[_-])?overwrit(e|ing)([_-](output|existing|dir|save|log).*)?|force|exist[_-]ok")
_OF_ONE = re.compile(r"(?i)check|ckpt|epoch|step|iter|snapshot")  # in the name of a folder with one checkpoint
_GIVEN = "the-value-of-it"  # stands for what the flag is given
_CHOICES = ("auto", "resume", "latest", "last", "newest", "true", "yes", "allow", "always", "on")
_CONFIGURED = (
    "ckpt_path",
    "resume",
    "resume_from",
    "resume_from_checkpoint",
    "resume_path",
    "checkpoint_path",
    "input_model",
    "init_model",
)


def resume_arguments(script: Script, given: dict[str, str], *, resumes: bool = False) -> str:
    """Empty if it needs none, because it `resumes` by itself, or if none are known. `given` are the values of its flags
    in the command."""
    told = _resuming(script, given, resumes=resumes)
    numbered = any(UNKNOWN in path for path in script.saving(given).checkpoints)
    begin = _begins_with(script, told=bool(told)) if numbered and _NUMBER not in told else ""
    return " ".join(filter(None, (told, begin, _allowing(script, told.split()))))


def _resuming(script: Script, given: dict[str, str], *, resumes: bool) -> str:
    if script.settings.get("init_from") and script.takes_settings:
        return "--init_from=resume"
    named = [(flag.bare.lower(), flag) for flag in script.flags]
    for bare, flag in named:
        if bare in ("init_from", "init-from"):
            return f"{flag.name} resume"
    for pattern in (_SAYS_SO, _MAY_MEAN_IT, _WEIGHTS):
        for bare, flag in named:
            if (
                pattern.fullmatch(bare)
                and not _NOT.fullmatch(bare)
                and _is_meant(flag, script, pattern, resumes=resumes)
                and (written := _written(flag, script, given))
            ):
                return written
    return _configured(script) or _by_number(script, resumes=resumes)


def _by_number(script: Script, *, resumes: bool) -> str:
    """As `--resume_iters 20000`, for a script that makes the path from it."""
    meant = (flag for flag in script.flags if flag.number and _BY_NUMBER.fullmatch(flag.bare.lower()))
    needed = (flag for flag in meant if not resumes or _is_used(script, flag.dest, _LOADERS))
    return next((f"{flag.name} {_NUMBER}" for flag in needed), "")


def _begins_with(script: Script, *, told: bool) -> str:
    """As `--start_epoch 12`, for a script whose loop begins there and which reads that number from no checkpoint. If
    it is `told` nothing else, it has to load by this number."""
    for flag in script.flags:
        if flag.number and _BEGINS.fullmatch(flag.bare.lower()) and (told or _is_used(script, flag.dest, _LOADERS)):
            every = [node for tree in (script.tree, *script.modules.values()) for node in (nodes(tree) if tree else ())]
            loops = [one for one in every if isinstance(one, ast.Call) and name_of(one) in ("range", "trange")]
            begins = any(_speaks_of(one.args[0], flag.dest) for one in loops if len(one.args) > 1)
            targets = (target for one in every if isinstance(one, ast.Assign) for target in one.targets)
            if begins and not any(getattr(target, "attr", "") == flag.dest for target in targets):
                return f"{flag.name} {_NUMBER}"
    return ""


def _speaks_of(node: ast.expr, dest: str) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == dest for one in ast.walk(node))


def _is_meant(flag: ScriptFlag, script: Script, pattern: re.Pattern[str], *, resumes: bool) -> bool:
    if flag.default not in (None, "", "True", "False") and resumes and not flag.switch:
        return False
    if flag.number or (flag.choices and not _chosen(flag)):
        return False  # it takes no path
    if flag.switch and "restart" in flag.name:
        return False  # as a switch it means to start over
    if pattern is _SAYS_SO or flag.switch:
        return pattern is not _WEIGHTS
    if _is_used(script, flag.dest, _SAVERS):
        return False
    return pattern is _MAY_MEAN_IT or (_is_used(script, flag.dest, _LOADERS) and _restores_progress(script))


def _written(flag: ScriptFlag, script: Script, given: dict[str, str]) -> str:
    if flag.switch:
        return flag.name
    if flag.choices:
        return f"{flag.name} {_chosen(flag)}"
    if flag.default in ("True", "False") and not flag.optional:
        return f"{flag.name} True"
    return f"{flag.name} {value}" if (value := _value(flag, script, given)) else ""


def _value(flag: ScriptFlag, script: Script, given: dict[str, str]) -> str:
    """The folder of all checkpoints, if the script finds the newest of them in it by itself: as DeepSpeed, which reads
    the name in `latest`. Empty if it takes the folder of an earlier start, `runs/2026-05-01`."""
    loads = script.saving({**given, flag.dest: _GIVEN}).loads
    ends = [one.split("/")[1:] for one in loads if one.startswith(f"{_GIVEN}/")]
    saved = script.saving(given)
    files = (*saved.checkpoints, *saved.models)
    found = [folder for path in files for end in ends if (folder := _above(path.split("/"), end))]
    found += _paired(script) if _GIVEN in loads else []
    fixed = [path for path in found if UNKNOWN not in path]
    starts = [path for path in found if not _OF_ONE.search(PurePosixPath(path).name)]
    return _reference(fixed[0]) if fixed else "" if starts else _NEWEST


def _above(parts: list[str], end: list[str]) -> str:
    """The folder in which a path ends like this; either of them may have unknown parts."""
    inside = parts[-len(end) :]
    alike = all(fnmatchcase(one, other) or fnmatchcase(other, one) for one, other in zip(inside, end, strict=False))
    return "/".join(parts[: -len(end)]) if alike and len(parts) > len(end) else ""


def _paired(script: Script) -> list[str]:
    """Where calls of a library save whose counterpart loads all of it again."""
    own, found = script.values.code.functions, list[str]()
    trees = [script.tree, *script.modules.values()]
    for saver, loader in (("save_checkpoint", "load_checkpoint"), ("save_state", "load_state")):
        if script.values.code.called(loader) and loader not in own:
            places = [one.args[0] for one in script.values.code.called(saver) if one.args]
            fixed = [one for one in places if not any(_means_another(tree, getattr(one, "id", "")) for tree in trees)]
            found += [text for place in fixed if (text := script.values.text(place))]
    return [one for one in found if not PurePosixPath(one).suffix]


def _reference(path: str) -> str:
    path = path.rstrip("/")
    return f"${{{path}}}" if path in ("outputs", "checkpoints") else path


def _allowing(script: Script, told: list[str]) -> str:
    """The switch without which it refuses to start where it has been, unless what it is told does the same."""
    if script.values.code.called("rmtree"):
        return ""  # it may remove what it is to resume from
    others = {flag.dest for flag in script.flags if flag.name in told}
    for flag in script.flags:
        if flag.switch and _OVERWRITES.fullmatch(flag.bare.lower()) and _refuses_without(script, flag.dest, others):
            return flag.name
    return ""


def _refuses_without(script: Script, dest: str, others: set[str]) -> bool:
    for tree in (script.tree, *script.modules.values()):
        for node in nodes(tree) if tree else ():
            asked = {getattr(one, "attr", "") for one in ast.walk(node.test)} if isinstance(node, ast.If) else set()
            if isinstance(node, ast.If) and dest in asked and not others & asked:
                return any(isinstance(one, ast.Raise) or _exits(one) for part in node.body for one in ast.walk(part))
    return False


def _exits(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and name_of(node) in ("exit", "_exit", "error")


def _chosen(flag: ScriptFlag) -> str:
    return next((one for one in flag.choices if one.lower() in _CHOICES), "")


def _configured(script: Script) -> str:
    """A key of the configuration that is empty or says no, as `ckpt_path: null`, if `key=value` may be given for it."""
    if not ("hydra" in script.imports or script.takes_pairs):
        return ""
    unset = {**dict.fromkeys(_asked_for(script), False), **script.unset_settings}
    return next((f"{key}={'True' if unset[key] else _NEWEST}" for key in _CONFIGURED if key in unset), "")


def _asked_for(script: Script) -> list[str]:
    """The keys that it can do without: `given.get("input_model")`."""
    trees = [tree for tree in (script.tree, *script.modules.values()) if tree and script.takes_pairs]
    calls = (
        one for tree in trees for one in nodes(tree) if isinstance(one, ast.Call) and name_of(one) in ("get", "pop")
    )
    plain = (one for one in calls if len(one.args) == 1 or getattr(one.args[1], "value", "") is None)
    return [word for one in plain for word in texts(one.args[:1])]


def _is_used(script: Script, dest: str, callers: tuple[str, ...]) -> bool:
    """Whether a call of these has the flag's value among its arguments."""
    for tree in (script.tree, *script.modules.values()):
        names = ("attr",) if _means_another(tree, dest) else ("attr", "id")
        for node in nodes(tree) if tree else ():
            if isinstance(node, ast.Call) and name_of(node) in callers:
                inside = (
                    one for argument in (*node.args, *(k.value for k in node.keywords)) for one in ast.walk(argument)
                )
                if any(getattr(one, name, "") == dest for one in inside for name in names):
                    return True
    return False


def _means_another(tree: ast.AST | None, dest: str) -> bool:
    """Whether a variable of the flag's name is given a value of its own: the path to save to, after it was loaded."""
    return any(
        isinstance(node, ast.Assign)
        and any(getattr(target, "id", "") == dest for target in node.targets)
        and isinstance(node.value, ast.Call | ast.JoinedStr | ast.BinOp)
        and not any(dest in (getattr(one, "attr", ""), getattr(one, "id", "")) for one in ast.walk(node.value))
        for node in (nodes(tree) if tree else ())
    )


def _restores_progress(script: Script) -> bool:
    """Whether it reads an epoch, a step or an optimizer from what it loads: then it is more than weights."""
    for tree in (script.tree, *script.modules.values()):
        for node in nodes(tree) if tree else ():
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                key = node.slice.value if isinstance(node.slice, ast.Constant) else None
                if isinstance(key, str) and _PROGRESS.fullmatch(key):
                    return True
    return False


# Folders that must not exist when the script starts: `os.makedirs(out)`, or an error where one is found.

_LOOKS = ("exists", "isdir", "is_dir", "lexists")
_LOOKS_INSIDE = ("listdir", "iterdir", "scandir", "glob", "any")  # an empty folder is all right


def refused(script: Script, given: dict[str, str]) -> dict[str, bool]:
    """Folders that the script creates itself, and refuses to find. True: whatever it is told, so that it never starts
    there twice."""
    script.values.forced = given
    elsewhere = moved_to(script.values)
    trees = [tree for tree in (script.tree, *script.modules.values()) if tree]
    return {below(elsewhere, path): always for path, always in _refused(trees, script.values)}


def _refused(trees: list[ast.Module], values: Values) -> Iterator[tuple[str, bool]]:
    wiped = {path for call in values.code.called("rmtree") for path in _named_by(call, values)}
    for tree in trees:
        harmless = {id(call) for call in _harmless(tree, values)}
        for node in nodes(tree):
            if isinstance(node, ast.If | ast.Assert):
                always = not isinstance(node.test, ast.BoolOp)
                found = ((path, always) for call in _denied(node) for path in _named_by(call, values))
            elif isinstance(node, ast.Call) and name_of(node) in ("makedirs", "mkdir") and id(node) not in harmless:
                told = [one.value for one in node.keywords if one.arg == "exist_ok"]
                told_so = getattr(told[0], "value", None) if told else False
                if told_so is True:
                    continue
                found = ((path, told_so is False) for path in _named_by(node, values))
            else:
                continue
            yield from ((path, always) for path, always in found if path not in wiped)


def _named_by(call: ast.Call, values: Values) -> list[str]:
    """The folder of `os.makedirs(folder)` and of `folder.mkdir(parents=True)`."""
    of_os = getattr(getattr(call.func, "value", None), "id", "") in ("os", "shutil") or "path" in ast.unparse(call.func)
    own = call.func.value if isinstance(call.func, ast.Attribute) and not of_os else None
    place = own if own is not None else call.args[0] if call.args else None
    return [path.rstrip("/") for text in values.texts(place) if (path := as_path(text))]


def _denied(node: ast.If | ast.Assert) -> list[ast.Call]:
    """The looks at a folder after which it gives up if that exists."""
    if isinstance(node, ast.Assert):
        parts = [node.test.operand] if isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not) else []
    else:
        ends = any(isinstance(one, ast.Raise) or _exits(one) for part in node.body for one in ast.walk(part))
        alone = isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
        parts = [] if not ends else node.test.values if alone else [node.test]  # type: ignore[attr-defined]  # of And
        if any(isinstance(one, ast.Call) and name_of(one) in _LOOKS_INSIDE for one in ast.walk(node.test)):
            return []
    return [one for one in parts if isinstance(one, ast.Call) and name_of(one) in _LOOKS]


def _harmless(tree: ast.AST, values: Values) -> Iterator[ast.Call]:
    """Calls that create a folder only where there is none, or whose error is caught."""
    for node in nodes(tree):
        if isinstance(node, ast.Try):
            yield from _calls(node.body)
        elif isinstance(node, ast.If):
            looks = [one for one in ast.walk(node.test) if isinstance(one, ast.Call) and name_of(one) in _LOOKS]
            asked = {path for one in looks for path in _named_by(one, values)}
            inside = [*_calls(node.body), *_calls(node.orelse)] if looks else []
            yield from (one for one in inside if asked & set(_named_by(one, values)))


def _calls(statements: list[ast.stmt]) -> Iterator[ast.Call]:
    return (one for part in statements for one in ast.walk(part) if isinstance(one, ast.Call))

"""The arguments that make a script resume: found by a flag's name, and by what the script does with its value."""

from __future__ import annotations

import ast
import re

from stoker.client.script.flags import ScriptFlag
from stoker.client.script.localcode import name_of, nodes
from stoker.client.script.script import Script

_NEWEST = "${checkpoint.newest}"
_SAYS_SO = re.compile(
    r"(auto[_-]?)?(resume|restore|continue)"
    r"([_-]?(from|path|checkpoint|ckpt|file|training|train|model|weights|run|state|dir|last|latest|if|possible))*"
)
# May also be where to save, or an initial model: what the script does with it decides.
_MAY_MEAN_IT = re.compile(
    r"(load|ckpt|checkpoint|last[_-]?(ckpt|checkpoint)|(model[_-])?(ckpt|checkpoint)[_-](path|file|to[_-]load)"
    r"|load[_-](checkpoint|ckpt|model|state|from|path|file|dir|checkpoint[_-]path|from[_-]checkpoint)"
    r"|(from|start)[_-](checkpoint|ckpt)|start[_-]from|restart([_-]?(from|path|file|checkpoint|ckpt))*)"
)
_WEIGHTS = re.compile(r"(load[_-])?(weights|pretrained|model[_-]path|init(ial)?([_-](checkpoint|ckpt|weights|model))?)")
_NOT = re.compile(r"(no|dont|skip)[_-].*|.*[_-](opt|optimizer|only|freq|every|interval|steps|epoch)")
_PROGRESS = re.compile(
    r"(?i)(last_|start_|cur(rent)?_|num_)?(epochs?(_run)?|steps?|global_step|iter(ation)?(_num)?s?|optimi[sz]er)"
)
_SAVERS = ("save", "dump", "save_checkpoint", "save_model", "save_weights", "save_pretrained", "save_state", "savez")
_LOADERS = ("load", "load_model", "load_weights", "load_checkpoint", "load_state", "load_state_dict", "from_pretrained")
_CHOICES = ("auto", "resume", "latest", "last", "newest", "true", "yes", "allow", "always", "on")
_CONFIGURED = ("ckpt_path", "resume", "resume_from", "resume_from_checkpoint", "resume_path", "checkpoint_path")


def resume_arguments(script: Script, *, resumes: bool = False) -> str:
    """Empty if it needs none, because it `resumes` by itself, or if none are known."""
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
            ):
                return _written(flag)
    return _configured(script)


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


def _written(flag: ScriptFlag) -> str:
    if flag.switch:
        return flag.name
    if flag.choices:
        return f"{flag.name} {_chosen(flag)}"
    return f"{flag.name} True" if flag.default in ("True", "False") and not flag.optional else f"{flag.name} {_NEWEST}"


def _chosen(flag: ScriptFlag) -> str:
    return next((one for one in flag.choices if one.lower() in _CHOICES), "")


def _configured(script: Script) -> str:
    """With Hydra, a key that is empty in the configuration, as `ckpt_path: null`."""
    if "hydra" not in script.imports:
        return ""
    return next((f"{key}={_NEWEST}" for key in _CONFIGURED if key in script.empty_settings), "")


def _is_used(script: Script, dest: str, callers: tuple[str, ...]) -> bool:
    """Whether a call of these has the flag's value among its arguments."""
    for tree in (script.tree, *script.modules.values()):
        for node in nodes(tree) if tree else ():
            if isinstance(node, ast.Call) and name_of(node) in callers:
                inside = (
                    one for argument in (*node.args, *(k.value for k in node.keywords)) for one in ast.walk(argument)
                )
                if any(dest in (getattr(one, "attr", ""), getattr(one, "id", "")) for one in inside):
                    return True
    return False


def _restores_progress(script: Script) -> bool:
    """Whether it reads an epoch, a step or an optimizer from what it loads: then it is more than weights."""
    for tree in (script.tree, *script.modules.values()):
        for node in nodes(tree) if tree else ():
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                key = node.slice.value if isinstance(node.slice, ast.Constant) else None
                if isinstance(key, str) and _PROGRESS.fullmatch(key):
                    return True
    return False

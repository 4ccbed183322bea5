"""What a first job file cannot mend, said by `stoker init`: places that are not kept, and scripts that never resume."""

from __future__ import annotations

import ast
import re

from stoker.client.localcode import name_of, nodes
from stoker.client.script import Script

_RESUMING = re.compile(
    r"(?i)_?(re)?(load|restore|resume|read_checkpoint)\w*|from_pretrained|get_last_checkpoint|\w*_?load(er)?_?state\w*"
)
_RESUMING_BY_NATURE = (
    "BackupAndRestore",
    "create_study",
    "load_study",
    "RDBStorage",
    "CheckpointManager",
    "LightningCLI",
)
_RESUMING_KEYWORDS = {"resume_from_checkpoint", "ckpt_path", "xgb_model", "init_model", "resume", "warm_start"}
_READS_DATA = re.compile(
    r"load(_dataset|_data|txt|_from_disk|ers?|_image|_csv|_iris|_digits|_json|_yaml|_config|s|_dotenv|_module)?"
)
_OF_DATA = ("json", "yaml", "toml", "tomllib", "np", "numpy", "OmegaConf", "importlib", "ctypes", "datasets", "csv")


def advice(script: Script, given: dict[str, str], *, saves: bool, resume: str) -> list[str]:
    """Nothing is said where it cannot be known from the text. `given` are the flags that the command gives."""
    if script.tree is None or not (script.trains or script.frameworks):
        return []
    outside = script.saving(given).outside
    lines = [
        f"{script.path} saves to `{path}`, which is not in its working directory and so not kept: use a relative path"
        for path in outside[:3]
    ]
    if not saves and not outside:
        lines.append(f"no place was found where {script.path} saves: name it under `outputs` and `checkpoints`")
    elif not resume and not _may_resume(script):
        lines.append(f"{script.path} loads no checkpoint: after an eviction it starts from the beginning")
    return lines


def _may_resume(script: Script) -> bool:
    for tree in (script.tree, *script.modules.values()):
        for node in nodes(tree) if tree else ():
            if isinstance(node, ast.Call) and (
                _resumes(node) or {one.arg for one in node.keywords} & {*_RESUMING_KEYWORDS}
            ):
                return True
    return False


def _resumes(call: ast.Call) -> bool:
    name, owner = name_of(call), ""
    if isinstance(call.func, ast.Attribute):
        owner = getattr(call.func.value, "id", "")
    if name in _RESUMING_BY_NATURE:
        return True
    if owner in _OF_DATA and not (name == "load" and owner in ("np", "numpy")):
        return False
    return bool(_RESUMING.fullmatch(name)) and not (_READS_DATA.fullmatch(name) and name != "load")

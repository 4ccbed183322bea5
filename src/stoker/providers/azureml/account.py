"""Which workspace of Azure ML, as this provider reads it from its file. The login is that of `azure.json`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

from stoker.errors import NotSetUp

FILE = "azureml.json"
NOT_SET_UP = f"Azure ML is not set up on this computer: describe your workspace in {FILE}"
NO_CLUSTER = f"name a compute cluster: make one with `stoker cluster create`, or set `compute` in {FILE}"
IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04:latest"
_WORKSPACE = re.compile(
    r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.MachineLearningServices/workspaces/[^/]+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LearningAccount:
    workspace: str  # its resource id
    compute: str = ""  # the cluster of jobs that name none
    image: str = IMAGE  # has a Python: the agent runs on it


def read_learning(path: Path) -> LearningAccount:
    """Raises NotSetUp, with what to do."""
    hint = "see the guide to Azure ML"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotSetUp(NOT_SET_UP, hint=hint) from None
    except (OSError, ValueError) as error:
        raise NotSetUp(f"{path} cannot be read: {error}", hint=hint) from None
    names = {one.name for one in fields(LearningAccount)}
    if not isinstance(found, dict) or not _WORKSPACE.fullmatch(str(found.get("workspace", ""))):
        raise NotSetUp(f"{path}: `workspace` is not the resource id of an Azure ML workspace", hint=hint)
    for name, value in found.items():
        if name not in names or not isinstance(value, str):
            raise NotSetUp(f"{path}: `{name}` is unknown or not text", hint=hint)
    return LearningAccount(**found)

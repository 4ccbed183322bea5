"""Stoker keeps a training burning: it runs your script anywhere, watches it, and brings the model back.

Names are loaded when they are first used, so that a training script that only calls `stoker.log` pays for nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.checkpoint.surroundings import log, should_stop
    from stoker.client.api.client import Client, cost, run
    from stoker.client.api.handle import RunHandle
    from stoker.model.job.job import DataInput, Environment, Job, Spot

__version__ = "0.1.0"

_HOMES = {
    "Client": "stoker.client.api.client",
    "DataInput": "stoker.model.job.job",
    "Environment": "stoker.model.job.job",
    "Job": "stoker.model.job.job",
    "RunHandle": "stoker.client.api.handle",
    "Spot": "stoker.model.job.job",
    "cost": "stoker.client.api.client",
    "log": "stoker.checkpoint.surroundings",
    "run": "stoker.client.api.client",
    "should_stop": "stoker.checkpoint.surroundings",
}

__all__ = ["Client", "DataInput", "Environment", "Job", "RunHandle", "Spot", "cost", "log", "run", "should_stop"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module `stoker` has no attribute `{name}`")

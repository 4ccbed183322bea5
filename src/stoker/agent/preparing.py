"""The environment that a job asks for, whatever it is: a Python, a venv."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from stoker.agent.endings import Broken
from stoker.agent.environment import Workshop, build
from stoker.agent.interpreter import check_python, which
from stoker.agent.machine import Machine
from stoker.agent.python import find_python
from stoker.agent.stopping import Stopping
from stoker.model.orders import Orders


def prepare(
    orders: Orders, machine: Machine, log: Path, stopping: Stopping, tell: Callable[[str, str], None]
) -> tuple[str, str]:
    """The Python to use, and a folder to import from besides. Raises Broken, or Stopped."""
    wanted = orders.job.environment
    if wanted.image or wanted.dockerfile:
        raise Broken("this node does not run containers", "give a requirements file as `environment` instead")
    own = {name: value for name, value in orders.job.env.items() if name.startswith(("UV_", "PIP_"))}
    environ = {**machine.variables, **own}
    uv = machine.uv or which("uv", environ.get("PATH", ""))
    python = orders.python or sys.executable
    if wanted.python:
        python = find_python(wanted.python, python, uv, environ)
    check_python(python)
    if not wanted.requirements:
        return python, ""
    workshop = Workshop(machine.folder, machine.environments, uv, environ, orders.key, log, stopping, tell)
    return build(workshop, wanted.requirements, python, orders.snapshot)

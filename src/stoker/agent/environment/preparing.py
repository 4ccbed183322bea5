"""The environment of a job: a Python, or a venv."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from stoker.agent.attempt.endings import AttemptBroken
from stoker.agent.environment.building import Workshop, build
from stoker.agent.environment.python import bring_python, bring_uv, check_python, find_python, which
from stoker.agent.environment.recipe import read_recipe, read_taken
from stoker.agent.machine.machine import NodeMachine
from stoker.agent.notice.stopping import Stopping
from stoker.model.node.orders import Orders
from stoker.model.run.report import MOST_PACKAGES

Tell = Callable[[str, str], None]

# Folder names are enough: importing the packages would take seconds.
_ASK = """
import json, os, sys
found = {}
for place in sys.path:
    try:
        names = os.listdir(place) if place.endswith(("site-packages", "dist-packages")) else ()
    except OSError:
        continue
    for name in names:
        if name.endswith((".dist-info", ".egg-info")):
            package, _, version = name.rpartition(".")[0].partition("-")
            found.setdefault(package.lower().replace("_", "-").replace(".", "-"), version.partition("-py")[0])
print(json.dumps({"python": "%d.%d.%d" % sys.version_info[:3], **dict(sorted(found.items()))}))
"""


def prepare(orders: Orders, machine: NodeMachine, log: Path, stopping: Stopping, tell: Tell) -> tuple[str, str]:
    """The Python to use, and an additional folder to import from. Raises Broken, or Stopped."""
    wanted, software = orders.job.environment, orders.software
    if wanted.image or wanted.dockerfile:
        raise AttemptBroken("this node does not support containers", "use a requirements file as `environment` instead")
    taken = software is not None and software.packages > 0 and wanted.is_taken_along
    environ = _environ(orders, machine)
    uv = machine.uv or which("uv", environ.get("PATH", ""))
    if software and not uv and (taken or wanted.requirements):
        uv = bring_uv(software.uv, machine.environments, tell)
    python, uv = _python(orders, machine, uv, tell)
    check_python(python)
    if not wanted.requirements and not taken:
        return python, ""
    workshop = Workshop(machine.folder, machine.environments, uv, environ, orders.key, log, stopping, tell)
    work = machine.folder.work
    recipe = read_recipe(work, wanted.requirements) if wanted.requirements else read_taken(work)
    return build(workshop, recipe, python, orders.snapshot)


def packages(python: str) -> dict[str, str]:
    """The packages of this Python by name, and its own version. Empty where it does not run."""
    try:
        asked = [python, "-I", "-c", _ASK]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        found = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return {name[:200]: str(version)[:100] for name, version in list(found.items())[:MOST_PACKAGES]}


def _environ(orders: Orders, machine: NodeMachine) -> dict[str, str]:
    """A system service has no home folder, so uv needs to know where to cache downloads."""
    own = {name: value for name, value in orders.job.env.items() if name.startswith(("UV_", "PIP_"))}
    if not orders.software:
        return {**machine.variables, **own}
    kept = {"UV_CACHE_DIR": str(machine.environments / "cache"), "UV_PYTHON_INSTALL_DIR": _pythons(machine)}
    return {**kept, **machine.variables, **own}


def _pythons(machine: NodeMachine) -> str:
    return str(machine.environments / "pythons")


def _python(orders: Orders, machine: NodeMachine, uv: str | None, tell: Tell) -> tuple[str, str | None]:
    """The Python that the job names. On a cloud VM without it, uv downloads it; where that fails, too, and the job does
    not insist, the VM's own is used."""
    wanted, software, usual = orders.job.environment, orders.software, orders.python or sys.executable
    named, environ = wanted.python or (software.python if software else ""), _environ(orders, machine)
    if not named:
        return usual, uv
    try:
        return find_python(named, usual, uv, environ), uv
    except AttemptBroken as missing:
        if software is None or "/" in named:
            raise
        uv = uv or bring_uv(software.uv, machine.environments, tell)
        if uv and (brought := bring_python(named, uv, environ, tell)):
            return brought, uv
        if wanted.python:
            raise
        tell("environment", f"{missing.message}: using `{usual}` instead")
        return usual, uv

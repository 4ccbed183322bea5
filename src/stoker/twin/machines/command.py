"""A script from outside, run inside a machine, as the agent of a real VM runs those of its cloud."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from stoker.twin.machines.folder import MachineFolder
from stoker.twin.machines.guest.marked import end
from stoker.twin.machines.power import Enclosure, Power

TOOK_TOO_LONG = 124  # the exit code that `timeout` gives
_FOLDER = "var/lib/waagent/run-command"


def run_script(
    enclosure: Enclosure, power: Power, folder: MachineFolder, number: int, script: str, timeout_s: float
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr. What it leaves running goes on, unless it took too long."""
    place = folder.root / _FOLDER / str(number)
    file = _write(place, enclosure.rewritten(folder, script))
    words, variables = enclosure.command(power, folder, file)
    code = _run(words, variables, place, timeout_s)
    out, err = ((place / name).read_text(errors="replace") for name in ("stdout", "stderr"))
    return code, out, err


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = folder / "script.sh"
    file.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}", encoding="utf-8")
    file.chmod(0o700)
    return file


def _run(words: list[str], variables: dict[str, str], folder: Path, timeout_s: float) -> int:
    """Output goes to files: what the script leaves running may keep them open."""
    mark = os.urandom(16).hex()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = subprocess.Popen(
            words,
            env={**variables, "INVOCATION_ID": mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            cwd="/",
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end(f"INVOCATION_ID={mark}", child.pid)
            child.wait()
            return TOOK_TOO_LONG
    return code if code >= 0 else 128 - code

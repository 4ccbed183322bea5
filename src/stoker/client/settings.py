"""The client's settings: the one file of client and command line that reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.model.workspace.home import Home


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Read once, then passed along. `environ` is where secrets of a job are looked up."""

    home: Home
    server: str  # the URL of a remote server; empty: this computer's own
    token: str
    person: str
    python: str  # the interpreter of a run whose job names none
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    by_hand: bool = False  # the user starts the server, whose devices are then those of this shell

    @property
    def local(self) -> bool:
        """The server is on this computer, so it can reach the folders that a job is submitted from."""
        return not self.server

    def variable(self, name: str) -> str | None:
        return self.environ.get(name)

    @property
    def shell(self) -> Mapping[str, str]:
        """All variables of the submitting process."""
        return self.environ

    def with_variable(self, name: str, value: str) -> ClientSettings:
        """The same, with another variable for the server that is started with them."""
        return replace(self, environ={**self.environ, name: value})

    def for_tools(self) -> dict[str, str]:
        """The variables for uv: everything except the active environment."""
        return {name: value for name, value in self.environ.items() if name not in ("VIRTUAL_ENV", "CONDA_PREFIX")}

    def for_server(self) -> dict[str, str]:
        """The variables for a server: everything, and the home as read here. Without the mark of a run that this
        program is part of: the server would be ended with that run. Without variables that runs bring themselves: later
        runs would get them from here. Only a user who starts the server chooses its devices."""
        from stoker.client.submit.surroundings import (  # slow to import, servers are seldom started
            DEVICES,
            belongs_to_runs,
        )

        chosen = DEVICES if self.by_hand else frozenset()
        kept = {
            name: value
            for name, value in self.environ.items()
            if name != "STOKER_NODE_KEY" and (name in chosen or not belongs_to_runs(name))
        }
        return {**kept, "STOKER_HOME": str(self.home.root)}


def from_environment(environ: Mapping[str, str] | None = None) -> ClientSettings:
    """Settings from variables; None: those of this process."""
    given = os.environ if environ is None else environ
    home = given.get("STOKER_HOME", "").strip()
    return ClientSettings(
        home=Home(Path(home).expanduser().absolute() if home else _user_folder(given) / ".stoker"),
        server=given.get("STOKER_SERVER", "").strip().rstrip("/"),
        token=given.get("STOKER_TOKEN", "").strip(),
        person=given.get("USER") or given.get("LOGNAME") or given.get("USERNAME") or _login(),
        python=_python(given),
        environ=dict(given),
    )


def _user_folder(environ: Mapping[str, str]) -> Path:
    named = environ.get("HOME") or environ.get("USERPROFILE")
    return Path(named).absolute() if named else Path.home()


def _login() -> str:
    """Containers often set no user; then the system may know one."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def _python(environ: Mapping[str, str]) -> str:
    """The active environment's interpreter: Stoker itself may be installed outside of it, as a tool."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable, "").strip()
        for place in ("bin/python", "Scripts/python.exe", "python.exe"):
            if prefix and (Path(prefix) / place).is_file():
                return str(Path(prefix).absolute() / place)
    return sys.executable

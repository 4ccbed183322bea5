"""The settings of this server: its only file that reads the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import BadInput
from stoker.model.workspace.home import Home
from stoker.server.stores.keychain import WAYS


@dataclass(frozen=True, slots=True)
class ServerSettings:
    home: Home
    port: int | None = None  # loopback TCP, besides the home's Unix socket; None: none, 0: any free one
    slots: int | None = None  # nodes on this computer at once; None: one per core
    keychain: str = "auto"  # where credentials are stored: the system's keyring if it has one, or `file`
    access_s: float = 86_400.0  # how long a node's store token is valid before it must be renewed
    idle_exit_s: float = 7200.0  # an idle server without requests stops after this; the next command starts one


def from_environment(environ: Mapping[str, str]) -> ServerSettings:
    root = Path(environ.get("STOKER_HOME") or "~/.stoker").expanduser().absolute()
    slots = _whole(environ, "STOKER_SLOTS", 0)
    return ServerSettings(
        home=Home(root),
        port=_whole(environ, "STOKER_PORT", 0) if environ.get("STOKER_PORT") else None,
        slots=slots or None,
        keychain=_one_of(environ, "STOKER_KEYCHAIN", WAYS),
        access_s=float(_whole(environ, "STOKER_ACCESS_LIFE", 86_400)),
        idle_exit_s=float(_whole(environ, "STOKER_IDLE_EXIT", 7200)),
    )


def _one_of(environ: Mapping[str, str], name: str, words: Sequence[str]) -> str:
    """The first of them where the variable is not set."""
    text = environ.get(name) or words[0]
    if text not in words:
        raise BadInput(f"{name} is `{text}`, expected " + " or ".join(f"`{word}`" for word in words))
    return text


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise BadInput(f"{name} is `{text}`, expected a whole number")
    return int(text)

"""The settings of this server, its only file that reads the environment, and its home: private to its user."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import BadInput, HomeUnusable
from stoker.files import claim, write_whole
from stoker.files.mounted import MountedAt, mounted_at
from stoker.model.workspace.home import Home
from stoker.server.stores.stores import WAYS


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


log = logging.getLogger(__name__)

_HINT = "set STOKER_HOME to a folder of your own"


def make_private(home: Home) -> None:
    """Creates the home if missing, and removes the permissions of others from an existing one."""
    try:
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        close_home(home)
        if not home.database.exists():  # else a missing folder may be on a disk that is not mounted
            home.store.mkdir(exist_ok=True)
        for secret in _with_secrets(home):
            _close(secret)
        _check_locks(home, mounted_at(home.root))
        # SQLite would make it readable for everybody; its log and shared memory inherit its mode.
        os.close(os.open(home.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        hint = "set STOKER_HOME to a folder you can write to"
        raise HomeUnusable(f"could not use {home.root}: {error.strerror}", hint=hint) from error


def _check_locks(home: Home, there: MountedAt) -> None:
    """Two servers of one home, on two login nodes, would both write to its database."""
    hint = "set STOKER_HOME to a folder on a disk of this computer, or to one whose locks hold"
    if there.local_locks:
        why = (
            f"{home.root} is on {there.kind}, mounted with `{there.local_locks}`: other computers do not see its locks"
        )
        raise HomeUnusable(why, hint=hint)
    try:
        probe = home.root / "server.probe"
        if (descriptor := claim(probe)) is not None:
            os.close(descriptor)
        probe.unlink(missing_ok=True)
    except OSError as error:
        what = f"{home.root} is on {there.kind or 'a file system'}, where files cannot be locked: {error.strerror}"
        raise HomeUnusable(what, hint=hint) from error


def close_home(home: Home) -> None:
    """Cheap where nothing needs to change. Raises HomeUnusable and OSError."""
    seen = home.root.stat()
    if seen.st_uid != os.geteuid():
        raise HomeUnusable(
            f"{home.root} belongs to user {seen.st_uid}, not to you (user {os.geteuid()}), who could read your secrets",
            hint=_HINT,
        )
    if not seen.st_mode & 0o077:
        return
    if seen.st_mode & stat.S_ISVTX or home.root == Path(home.root.anchor):
        raise HomeUnusable(f"{home.root} is shared by all users of this computer", hint=_HINT)
    home.root.chmod(0o700)
    log.warning("%s was accessible to others (mode %o): now only to you", home.root, stat.S_IMODE(seen.st_mode))


def _with_secrets(home: Home) -> list[Path]:
    databases = list(home.root.glob(f"{home.database.name}*"))  # with its log, and copies of damaged ones
    return [home.address, home.credentials, home.server_log, *databases, home.secrets, *home.secrets.glob("*.json")]


def _close(path: Path) -> None:
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077 and not path.is_symlink():
            path.chmod(mode & 0o700)


def server_id(home: Home) -> str:
    """The same at every start. The holder of the home's lock creates it, so there is no race."""
    with suppress(FileNotFoundError):
        if known := home.server_id.read_text(encoding="utf-8").strip():
            return known
    made = secrets.token_hex(8)
    write_whole(home.server_id, f"{made}\n")
    return made

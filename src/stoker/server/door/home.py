"""Stoker's home: private to its user at every start, refused if it belongs to another user, and with a random id that
distinguishes this server from any other."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from stoker.errors import HomeUnusable
from stoker.files.whole import write_whole
from stoker.model.workspace.home import Home

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
        # SQLite would make it readable for everybody; its log and shared memory inherit its mode.
        os.close(os.open(home.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        hint = "set STOKER_HOME to a folder you can write to"
        raise HomeUnusable(f"could not use {home.root}: {error.strerror}", hint=hint) from error


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

"""Stoker's home is its user's alone: closed to others at every start, and refused where it is somebody else's."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from stoker.errors import HomeUnusable
from stoker.model.workspace.home import Home

log = logging.getLogger(__name__)

_HINT = "set STOKER_HOME to a folder of your own"


def make_private(home: Home) -> None:
    """Makes the home where there is none, and takes from others what they may do with one that is there."""
    try:
        home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        close_home(home)
        if not home.database.exists():  # else a folder that is not there may be on a disk that is away
            home.store.mkdir(exist_ok=True)
        for secret in _with_secrets(home):
            _close(secret)
        # SQLite would make it readable for everybody; its log and its shared memory take after it.
        os.close(os.open(home.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        hint = "set STOKER_HOME to a folder you can write to"
        raise HomeUnusable(f"{home.root} cannot be used: {error.strerror}", hint=hint) from error


def close_home(home: Home) -> None:
    """Cheap where nothing has to be done. Raises HomeUnusable, and OSError."""
    seen = home.root.stat()
    if seen.st_uid != os.geteuid():
        raise HomeUnusable(
            f"{home.root} belongs to user {seen.st_uid}, not to you (user {os.geteuid()}), who could read your secrets",
            hint=_HINT,
        )
    if not seen.st_mode & 0o077:
        return
    if seen.st_mode & stat.S_ISVTX or home.root == Path(home.root.anchor):
        raise HomeUnusable(f"{home.root} is a folder that all users of this computer share", hint=_HINT)
    home.root.chmod(0o700)
    log.warning("%s was open to others (mode %o): now it is yours alone", home.root, stat.S_IMODE(seen.st_mode))


def _with_secrets(home: Home) -> list[Path]:
    databases = list(home.root.glob(f"{home.database.name}*"))  # with its log, and copies of damaged ones
    return [home.address, home.credentials, home.server_log, *databases, home.secrets, *home.secrets.glob("*.json")]


def _close(path: Path) -> None:
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode & 0o077 and not path.is_symlink():
            path.chmod(mode & 0o700)

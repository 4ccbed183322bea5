"""Starts a process from init: in its own session, with default signals, inheriting only its output."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence

NO_SUCH_PROGRAM = 203  # exit codes of systemd
NO_SUCH_FOLDER = 200
NO_SUCH_USER = 217

_CHANGED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


def spawn(words: Sequence[str], variables: Mapping[str, str], output: int, *, folder: str = "/", user: str = "") -> int:
    """Returns the pid. A failed start is an exit code of the process and a line in its output."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _become(words, dict(variables), output, folder, user)
    finally:
        os._exit(NO_SUCH_PROGRAM)


def _become(words: Sequence[str], variables: dict[str, str], output: int, folder: str, user: str) -> None:
    os.setsid()
    for number in _CHANGED:
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    _try(NO_SUCH_USER, _change_user, user, variables)
    _try(NO_SUCH_FOLDER, os.chdir, folder)
    _try(NO_SUCH_PROGRAM, os.execvpe, words[0], list(words), variables)


def _change_user(user: str, variables: dict[str, str]) -> None:
    if not user or user == "root":
        return
    import pwd  # here, because few units have a user

    entry = pwd.getpwnam(user)
    variables.update(USER=user, LOGNAME=user, HOME=entry.pw_dir, SHELL=entry.pw_shell)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def _try(code: int, action: object, *arguments: object) -> None:
    try:
        action(*arguments)  # type: ignore[operator]  # any of three calls with different signatures
    except (OSError, KeyError) as error:
        os.write(2, f"could not start: {error}\n".encode())
        os._exit(code)

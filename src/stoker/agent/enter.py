"""Becomes a command, or a shell, in the folder and with the variables of the run on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.agent.masking import Masking
from stoker.agent.nodefolder import NodeFolder
from stoker.model.entrance import Inside
from stoker.model.wire import load

NOT_RUN = 125  # clear of the command's own exit codes
_SHELLS = ("/bin/bash", "/bin/sh")
_OWN = ("TERM", "COLORTERM", "LANG", "LC_ALL", "SSH_CONNECTION", "SSH_TTY")  # what a person's terminal brings along


def enter(folder: NodeFolder, words: Sequence[str], variables: Mapping[str, str], secrets: Sequence[str] = ()) -> int:
    """Returns only where it could not, or with `secrets`: then what the command prints is held back to its end, and
    these are starred out in it."""
    try:
        inside = load(Inside, folder.inside.read_bytes())
        os.chdir(inside.folder)
    except OSError:
        return refuse("there is nothing of a run on this machine now")
    env = {**inside.env, **{name: variables[name] for name in _OWN if name in variables}}
    if secrets:
        return _masked(words, env, Masking(secrets))
    words = words or (next(shell for shell in _SHELLS if Path(shell).exists()), "-i")
    try:
        os.execvpe(words[0], list(words), env)
    except OSError as error:
        return refuse(f"{words[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)


def _masked(words: Sequence[str], env: Mapping[str, str], masking: Masking) -> int:
    import subprocess  # here, because only this way in needs it

    try:
        done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError as error:
        return refuse(f"{words[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126)
    for stream, said in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.buffer.write(masking.whole(said))
        stream.flush()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def refuse(why: str, code: int = NOT_RUN) -> int:
    print(f"stoker: {why}", file=sys.stderr)  # noqa: T201  # to whoever came in
    return code
